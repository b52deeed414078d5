"""Writes docs/passes.md: every registered pass with its arguments.

python docs/make_passes.py
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chop.passes.graph.analysis
import chop.passes.graph.interface
import chop.passes.graph.transforms  # noqa: F401
from chop.cli.option import field_help
from chop.passes import PASSES

PAGE = Path(__file__).resolve().parent / "passes.md"
KINDS = {
    "analysis": "Analysis passes look: they observe and annotate, and never change the graph.",
    "transform": "Transform passes change the graph, which always stays runnable.",
    "interface": "Interface passes bring things in and out of a graph.",
}
INTRODUCTION = """# All passes

A pass is called as `graph, info = name(graph, pass_args)`. `pass_args` is a mapping, written in
Python or read from TOML, and `None` stands for all defaults; a misspelt key is an error that names
the nearest one. Arguments without a default are bold. *Needs* names metadata that must be there,
and the error says which pass gives it. *Keeps the output* means that the model computes what it
computed before, up to rounding; the test suite checks that claim for every pass.

Written by `docs/make_passes.py` from the registry `chop.passes.PASSES`. To add one of your own, see
[Write a pass of your own](own_pass.md).
"""


def kind_of(name: str) -> str:
    """`analysis`, `transform` or `interface`."""
    return name.removesuffix("_pass").rpartition("_")[2]


def overview(own: dict[str, Callable[..., Any]]) -> str:
    """A table of passes: name and first sentence."""
    lines = ["| pass | what it does |", "|---|---|"]
    for name, run in own.items():
        first = (inspect.getdoc(run) or "").splitlines()[0].replace("|", "\\|")
        lines.append(f"| [`{name}`](#{name}) | {first} |")
    return "\n".join(lines)


def section(name: str, run: Callable[..., Any]) -> str:
    """One pass: what it does, what it declares, its arguments."""
    spec = run.spec  # type: ignore[attr-defined]
    lines = [f"### `{name}`", "", inspect.getdoc(run) or "", ""]
    facts = [f"needs: {', '.join(spec.needs)}"] if spec.needs else []
    if spec.rewrites:
        facts.append("keeps the output" if spec.preserves else "changes the output")
    if spec.on_module is not None:
        facts.append("takes a plain module too")
    if facts:
        lines += [f"*{'; '.join(facts).capitalize()}.*", ""]
    if dataclasses.fields(spec.args):
        lines += [*arguments(spec.args), ""]
    return "\n".join(lines)


def arguments(args: type) -> list[str]:
    """Return the documentation of the dataclass and a table of its fields."""
    has_help = any(field_help(part) for part in (args, *_nested(args)))
    names = ("argument", "type", "default", *(["meaning"] if has_help else []))
    header = [inspect.getdoc(args) or "", "", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    return [*header, *rows(args, has_help)]


def _nested(args: type) -> list[type]:
    hints = typing.get_type_hints(args)
    parts = [part for f in dataclasses.fields(args) for part in typing.get_args(hints[f.name])]
    return [p for p in parts if dataclasses.is_dataclass(p) and isinstance(p, type)]


def rows(args: type, has_help: bool, prefix: str = "") -> list[str]:
    """Return a row for each field; the fields of a nested dataclass follow its own row."""
    hints, helps, found = typing.get_type_hints(args), field_help(args), []
    for field in dataclasses.fields(args):
        hint = hints[field.name]
        meaning = helps.get(field.name, ("",))[0].replace("|", "\\|")
        last = f" {meaning} |" if has_help else ""
        found.append(f"| {_name(field, prefix)} | {_type(hint)} | {_default(field)} |{last}")
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                found += rows(part, has_help, f"{prefix}{field.name}.")
    return found


def _name(field: dataclasses.Field[Any], prefix: str) -> str:
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    name = f"`{prefix}{field.name}`"
    return f"**{name}**" if required else name


def _type(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    short = re.sub(r"(?:\w+\.)+(\w+)", r"\1", text).replace("NoneType", "None")
    return "`" + short.replace("|", "\\|") + "`"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return ""
    if dataclasses.is_dataclass(value):
        return ""  # its fields follow, each with its own default
    shown = str(value) if isinstance(value, Path) else repr(value)
    return f"`{shown}`"


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for kind, said in KINDS.items():
        own = {name: run for name, run in sorted(PASSES.items()) if kind_of(name) == kind}
        parts.append(f"## {kind.capitalize()}\n\n{said}\n\n{overview(own)}\n")
        parts += [section(name, run) for name, run in own.items()]
    return "\n".join(parts).rstrip() + "\n"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name}: {len(PASSES)} passes")


if __name__ == "__main__":
    main()
