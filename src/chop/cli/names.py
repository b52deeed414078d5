"""Registered names as values of options, read from the registries on demand.

To complete the names of a registry, give the field of an option `metadata=names("samplers")`;
with `closed=True` any other name is an error before the command starts.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.cli.named_objects import load_name
from chop.errors import ConfigError, MissingDependencyError
from chop.registry import suggest

REGISTRIES: Mapping[str, str] = {
    "formats": "chop.nn.quantizers:FORMATS",
    "ops": "chop.ir.ops:OPS",
    "passes": "chop.passes:PASSES",
    "models": "chop.models:MODELS",
    "datasets": "chop.dataset:DATASETS",
    "metrics": "chop.actions:METRICS",
    "methods": "chop.actions.post_training:METHODS",
    "observers": "chop.passes.ptq.observe.observers:OBSERVERS",
    "sweeps": "chop.actions.sweeps:SWEEPS",
    "samplers": "chop.search:SAMPLERS",
    "pruners": "chop.search:PRUNERS",
    "engines": "chop.search:ENGINES",
    "costs": "chop.search:COSTS",
    "spaces": "chop.search:SPACES",
    "components": "chop.hw.design.component:COMPONENTS",
    "parts": "chop.hw.flow.route.parts:PARTS",
    "boards": "chop.hw.boards.board_table:BOARDS",
}
"""Kind of names -> its registry as module:name, so that help imports none of them."""

SPELLING = "chop.nn.quantizers.formats:spelled_settings"
"""Function that checks that a text names or spells a number format."""


def registry(kind: str) -> Mapping[str, Any]:
    """Import and return the registry of `kind`."""
    table: Mapping[str, Any] = load_name(REGISTRIES[kind])
    return table


def registered_names(kind: str) -> tuple[str, ...]:
    """Return the names of `kind` that are registered now."""
    return tuple(registry(kind))


SINGULAR = {"passes": "pass"}
SHELVES: Mapping[str, str] = {"models": "MASE_MODELS", "datasets": "MASE_DATA"}
"""Kind of names -> environment variable with a folder of the user that holds more."""


def _completions(kind: str) -> tuple[str, ...]:
    try:
        return (*registered_names(kind), *_on_shelf(kind))
    except MissingDependencyError:  # without the search's packages there is nothing to complete
        return ()


def _on_shelf(kind: str) -> list[str]:
    shelf = os.environ.get(SHELVES.get(kind, ""))
    folder = Path(shelf) if shelf else None
    if folder is None or not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def names(kind: str, *, closed: bool = False, **more: Any) -> dict[str, Any]:
    """Return the metadata of a field whose values are names of `kind`."""
    if kind not in REGISTRIES:
        raise ConfigError(f"names: unknown kind '{kind}'. {suggest(kind, REGISTRIES)}")
    choices = functools.partial(_completions, kind)
    return {"choices": choices, **({"names": kind} if closed else {}), **more}


def check_names(config: Any, where: str) -> None:
    """Raise for the first option of `config` whose value is not a name of its registry.

    Metadata `check`, as module:function, names a function that checks an option instead.
    """
    for field in dataclasses.fields(config):
        kind, value = field.metadata.get("names"), getattr(config, field.name)
        if "check" in field.metadata and value not in (None, field.default):
            check = load_name(field.metadata["check"])
            for text in value if isinstance(value, tuple | list) else (value,):
                check(text, f"{where}.{field.name}")
        if kind is None or value is None:
            continue
        table = registry(kind)
        for name in value if isinstance(value, tuple | list) else (value,):
            if name not in table:
                problem = f"{where}.{field.name}: unknown {SINGULAR.get(kind, kind[:-1])} '{name}'."
                raise ConfigError(f"{problem} {suggest(name, table)}")
