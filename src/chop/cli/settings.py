"""Configurations of commands: read from defaults, files and flags; written as TOML."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from chop.cli.limits import check_limits
from chop.cli.named_objects import load_plugins
from chop.cli.names import check_names
from chop.compat.old_files import check_search, old_table, refuse_file
from chop.config import dump_toml, load_toml, parse, parse_toml
from chop.errors import ConfigError

T = TypeVar("T")


def resolve(
    cls: type[T],
    command: str,
    file: Path | None = None,
    assignments: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> T:
    """Return the configuration of `command`: default < table of `file` < `--set` < flag."""
    merged: dict[str, Any] = {} if file is None else read_table(file, command)
    for text in assignments:
        merged = merge(merged, read_assignment(text))
    return read_settings(cls, merge(merged, flags or {}), command)


def read_settings(cls: type[T], table: Mapping[str, Any], command: str) -> T:
    """Return the checked configuration of plain values; its plugins are imported first."""
    config = parse(cls, table, command)
    load_plugins(getattr(config, "plugins", ()))
    check_limits(config, command)
    check_names(config, command)
    return config


def read_table(file: Path, command: str) -> dict[str, Any]:
    """Return the table of a TOML file for the command, also of an old file."""
    tables = load_toml(file)
    table = tables.get(command)
    if table is None:
        table = old_table(tables, command)
    if not isinstance(table, Mapping):
        raise refuse_file(file, tables, command)
    if command == "search":
        check_search(file, table)
    return dict(table)


def read_assignment(text: str) -> dict[str, Any]:
    """Return `a.b=1` as nested mappings; a value that is not TOML is text.

    >>> read_assignment("rules.linear.config.name=integer")
    {'rules': {'linear': {'config': {'name': 'integer'}}}}
    """
    key, equals, value = text.partition("=")
    where = f"--set {text}"
    if not equals or not key.strip():
        raise ConfigError(f"{where}: expected KEY.PATH=VALUE.")
    try:
        return parse_toml(f"{key} = {value}", where)
    except ConfigError:
        return parse_toml(f"{key} = {json.dumps(value)}", where)


def merge(below: Mapping[str, Any], above: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return the union of both mappings; `above` wins, key by key in tables.

    A table and a plain value under one key are an error.
    """
    merged = dict(below)
    for key, value in above.items():
        old, place = merged.get(key), f"{where}.{key}" if where else key
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(old, value, place)
        elif old is not None and isinstance(old, Mapping) != isinstance(value, Mapping):
            table, plain = (old, value) if isinstance(old, Mapping) else (value, old)
            raise ConfigError(
                f"{place}: given as {plain!r:.60} and as a table with {', '.join(table) or 'none'}."
            )
        else:
            merged[key] = value
    return merged


def to_table(config: Any) -> dict[str, Any]:
    """Return the plain values of a configuration; `read_settings` reads them back."""
    table: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = _plain(getattr(config, field.name))
        if "rest" in field.metadata:
            table |= value
        else:
            table[field.name] = value
    return table


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_table(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


PLACES = ("out", "resume", "save_steps", "evaluate")
"""Settings without an effect on the results."""


def identity(config: Any) -> dict[str, Any]:
    """Return the settings that two equal runs share: all but `PLACES`."""
    return {key: value for key, value in to_table(config).items() if key not in PLACES}


def to_toml(command: str, config: Any) -> str:
    """Return the configuration as a file for `--config`."""
    return dump_toml({command: to_table(config)})
