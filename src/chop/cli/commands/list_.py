"""`mase list`: what is registered, by name."""

from __future__ import annotations

import inspect
from typing import Any

from chop.cli.configs import ListConfig
from chop.cli.names import REGISTRIES, registry
from chop.cli.session import Session
from chop.errors import MissingDependencyError
from chop.nn.quantizers.spelling import grammar


def run(config: ListConfig, session: Session) -> dict[str, Any]:
    """A table for each kind: names, and what each is."""
    session.start_work()
    kinds = REGISTRIES if config.kind is None else (config.kind,)
    found = {}
    for kind in kinds:
        try:
            rows = [_row(kind, name, thing) for name, thing in registry(kind).items()]
        except MissingDependencyError as error:
            session.console.say(f"{kind}: {error}\n")
            continue
        found[kind] = rows
        session.console.say(f"{kind}:")
        session.console.table(rows, tablefmt="plain")
        session.console.say()
    return {"names": found}


def _row(kind: str, name: str, thing: Any) -> dict[str, str]:
    """Return the name and the summary of a registered thing, and how a format is spelled."""
    spelled = {"spelling": grammar(thing)} if kind == "formats" else {}
    return {"name": name, **spelled, "what": summary_of(thing)}


def summary_of(thing: Any) -> str:
    """The first sentence that a registered thing says of itself."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        label = getattr(thing, "label", None)
        return str(label) if label else _first_line(getattr(thing, "make", None))
    return _first_line(thing)


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0] if thing is not None else ""
