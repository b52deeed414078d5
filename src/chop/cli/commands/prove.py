"""`mase prove`: the laws of hardware components, for all inputs and all times."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tabulate import tabulate

from chop.cli.configs import POSITIONAL, OutputOptions
from chop.cli.failures import FAILED, OK
from chop.cli.session import Session
from chop.errors import ConfigError
from chop.hw.proofs import Verdict, prove_all
from chop.hw.proofs.catalogue import all_proofs
from chop.hw.proofs.engine import find_abc
from chop.registry import suggest

HEAD = ("component", "law", "method", "depth", "seconds", "verdict")


@dataclass(frozen=True, kw_only=True)
class ProveConfig(OutputOptions):
    """Proofs of components of the library.

    `component`: one of them; all where it is not given. `limit`: seconds for one law.
    """

    component: str | None = field(default=None, metadata=POSITIONAL)
    limit: int = 600
    out: Path = Path("out/prove")


def run(config: ProveConfig, session: Session) -> dict[str, Any]:
    """Exit code 0 where every law is proved; a trace is written for each that is not."""
    proofs = all_proofs()
    known = {proof.module for proof in proofs}
    if config.component is not None and config.component not in known:
        raise ConfigError(
            f"component: nothing is proved of '{config.component}'. "
            f"{suggest(config.component, sorted(known))}"
        )
    chosen = [proof for proof in proofs if config.component in (None, proof.module)]
    find_abc()
    session.start_work()
    with session.console.progress(f"prove {len(chosen)} components"):
        verdicts = list(prove_all(chosen, os.cpu_count() or 1, config.limit))
    session.console.say(tabulate([v.row() for v in verdicts], HEAD, disable_numparse=True))
    traces = [_write(verdict, number, session) for number, verdict in enumerate(verdicts)]
    rows = [dict(zip(HEAD, v.row(), strict=True)) for v in verdicts]
    is_proved = all(verdict.is_proved for verdict in verdicts)
    told = [{**row, "trace": t} for row, t in zip(rows, traces, strict=True)]
    return {"exit_code": OK if is_proved else FAILED, "verdicts": told}


def _write(verdict: Verdict, number: int, session: Session) -> str | None:
    """The files of a counterexample."""
    if verdict.trace is None:
        return None
    name = f"{number}_{verdict.proof.module}_{verdict.law}.vcd"
    (session.folder / name).write_text(verdict.trace.vcd())
    session.console.say(f"\n{verdict.proof}: {verdict.law}\n{verdict.trace.table()}")
    return name
