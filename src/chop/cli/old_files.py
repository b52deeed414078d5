"""Sections of DeepWok/mase's TOML files that commands read.

To read another section, add a row to `SECTIONS` and a branch to `old_table`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.errors import ConfigError

SECTIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "quantize": (
        ("[passes.quantize]", "its rules"),
        ("[default], [linear] … with `config` or `name`", "a file of rules alone"),
        ("[model_layer_0.self_attn.q_proj] … with `name`", "rules for the layers of a block"),
        ("[module_classes_to_modify.linear] …", "the oldest layout of rules"),
    ),
    "prune": (("[passes.prune.weight], [passes.prune.activation]", "its sparsities and methods"),),
}
"""Command -> sections of old files that it reads, and the settings in each."""
BY_CLASS = re.compile(r"(?:module|function|method)_classes_to_modify")
BLOCK = re.compile(r"model_layer(?:_\d+)?")
OLD_SEARCH = ("search_space", "strategy")
"""Tables of an old [search], which describes another kind of search."""


def old_table(tables: Mapping[str, Any], command: str) -> dict[str, Any] | None:
    """Return the settings of `command` in a file of DeepWok/mase, or None.

    Model, dataset and training settings come from the command line instead.
    """
    passes = tables.get("passes")
    section = passes.get(command) if isinstance(passes, Mapping) else None
    if command == "prune" and isinstance(section, Mapping):
        return dict(section)
    if command != "quantize":
        return None
    if isinstance(section, Mapping):
        return {"rules": dict(section)}
    rules = {key: value for key, value in tables.items() if isinstance(value, Mapping)}
    if not rules or not all(_is_rule(key, value) for key, value in rules.items()):
        return None
    return {"rules": {**({"by": tables["by"]} if "by" in tables else {}), **rules}}


def _is_rule(key: str, table: Mapping[str, Any]) -> bool:
    if BY_CLASS.fullmatch(key) or BLOCK.fullmatch(key):
        return True
    return "name" in table or isinstance(table.get("config"), Mapping)


def refuse_file(file: Path, tables: Mapping[str, Any], command: str) -> ConfigError:
    """Return the error for a file without settings of `command`."""
    own = f"[{command}], as `mase {command} --dry-run` prints it"
    understood = "; ".join([own, *(section for section, _ in SECTIONS.get(command, ()))])
    sections = ", ".join(f"[{name}]" for name in _sections(tables)) or "none"
    return ConfigError(
        f"{file}: no table [{command}] for this command. Understood: {understood}. "
        f"Found: {sections}."
    )


def check_search(file: Path, table: Mapping[str, Any]) -> None:
    """Raise if the table [search] is one of DeepWok/mase."""
    old = [name for name in OLD_SEARCH if name in table]
    if old:
        raise ConfigError(
            f"{file}: [search.{old[0]}] describes a search of DeepWok/mase, which is not read. "
            "Understood: [search], as `mase search --dry-run` prints it, with its space in "
            "[search.space.compression.quantize] and [search.space.compression.prune]."
        )


def _sections(tables: Mapping[str, Any]) -> list[str]:
    """Return the sections of a file, with those inside [passes] and [search]."""
    sections: list[str] = []
    for name, value in tables.items():
        if not isinstance(value, Mapping):
            continue
        inner = [k for k, v in value.items() if isinstance(v, Mapping)]
        parts = inner if name in ("passes", "search") else []
        sections += [f"{name}.{each}" for each in parts] or [name]
    return sections
