"""`mase prove`: the laws of hardware components, for all inputs and all times."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from chop.cli.failures import FAILED, OK
from chop.cli.session import Session
from chop.cli.shared_options import POSITIONAL, OutputOptions
from chop.errors import ConfigError
from chop.registry import suggest

EXAMPLES = ("mase prove", "mase prove fifo", "mase prove fixed_cast --limit 600")
COLUMNS = ("component", "law", "method", "depth", "seconds", "verdict")


@dataclass(frozen=True, kw_only=True)
class ProveConfig(OutputOptions):
    """Proofs."""

    component: Annotated[str | None, "Component of the hardware library. Default: all."] = field(
        default=None, metadata=POSITIONAL
    )
    limit: Annotated[int, "Time limit for one law, in seconds."] = 600
    out: Path = Path("out/prove")


def run(config: ProveConfig, session: Session) -> dict[str, Any]:
    """Prove the laws; write a trace for each that fails. The exit code is 0 if all hold."""
    from chop.hw.proofs import prove_all
    from chop.hw.proofs.catalogue import all_proofs
    from chop.hw.proofs.prover import find_abc

    components = sorted({proof.module for proof in all_proofs()})
    if config.component is not None and config.component not in components:
        raise ConfigError(
            f"component: nothing is proved of '{config.component}'. "
            f"{suggest(config.component, components)}"
        )
    proofs = [proof for proof in all_proofs() if config.component in (None, proof.module)]
    find_abc()
    session.start_work()
    with session.console.progress(f"prove {len(proofs)} components"):
        verdicts = list(prove_all(proofs, os.cpu_count() or 1, config.limit))
    rows = [dict(zip(COLUMNS, verdict.row(), strict=True)) for verdict in verdicts]
    session.console.table(rows, disable_numparse=True)
    records = [
        {**row, "trace": _write_trace(verdict, number, session)}
        for number, (row, verdict) in enumerate(zip(rows, verdicts, strict=True))
    ]
    is_proved = all(verdict.is_proved for verdict in verdicts)
    return {"exit_code": OK if is_proved else FAILED, "verdicts": records}


def _write_trace(verdict: Any, number: int, session: Session) -> str | None:
    """Write the waveform of a counterexample and print it; return its file name."""
    if verdict.trace is None:
        return None
    name = f"{number}_{verdict.proof.module}_{verdict.law}.vcd"
    (session.folder / name).write_text(verdict.trace.vcd())
    session.console.say(f"\n{verdict.proof}: {verdict.law}\n{verdict.trace.table()}")
    return name
