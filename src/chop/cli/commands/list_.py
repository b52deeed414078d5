"""`mase list`: registered names."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Annotated, Any

from chop.cli.names import REGISTRIES, registry
from chop.cli.session import Session
from chop.cli.shared_options import POSITIONAL
from chop.errors import ConfigError, MissingDependencyError
from chop.registry import suggest

EXAMPLES = ("mase list", "mase list formats", "mase list passes --json")


@dataclass(frozen=True, kw_only=True)
class ListConfig:
    """Names."""

    kind: Annotated[str | None, "Kind of names: formats, passes, datasets … Default: all."] = field(
        default=None, metadata={**POSITIONAL, "choices": REGISTRIES.keys}
    )
    plugins: Annotated[
        tuple[str, ...], "Your own modules or files whose names are listed, too."
    ] = ()

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in REGISTRIES:
            raise ConfigError(f"kind: unknown '{self.kind}'. {suggest(self.kind, REGISTRIES)}")


def run(config: ListConfig, session: Session) -> dict[str, Any]:
    """Print a table for each kind: names and summaries."""
    session.start_work()
    tables = {}
    for kind in REGISTRIES if config.kind is None else (config.kind,):
        try:
            rows = [_row(kind, name, thing) for name, thing in registry(kind).items()]
        except MissingDependencyError as error:
            session.console.say(f"{kind}: {error}\n")
            continue
        tables[kind] = rows
        session.console.say(f"{kind}:")
        session.console.table(rows, tablefmt="plain")
        session.console.say()
    return {"names": tables}


def _row(kind: str, name: str, thing: Any) -> dict[str, str]:
    row = {"name": name}
    if kind == "formats":
        from chop.nn.quantizers.spelling import grammar

        row["spelling"] = grammar(thing)
    return {**row, "what": summary_of(thing)}


def summary_of(thing: Any) -> str:
    """Return the first sentence of a registered thing's documentation."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        if getattr(thing, "label", None):
            return str(thing.label)
        thing = getattr(thing, "make", None)
    return (inspect.getdoc(thing) or "").split("\n")[0] if thing is not None else ""
