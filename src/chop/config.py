"""Conversion of untyped mappings (Python dicts, TOML) to frozen dataclasses.

>>> @dataclasses.dataclass(frozen=True)
... class Args:
...     width: int = 8
>>> parse(Args, {"width": 4}, "quantize")
Args(width=4)
>>> parse(Args, {"widht": 4}, "quantize")
Traceback (most recent call last):
chop.errors.ConfigError: quantize: unknown key 'widht'. Did you mean 'width'? Known: width.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import numbers
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from chop.errors import ConfigError
from chop.files import read_text
from chop.registry import suggest

T = TypeVar("T")
NONE_SPELLINGS = ("NA", "None", "none")
"""Spellings of None in TOML, which has no null."""
LARGEST_TOML = 16 << 20
"""Largest TOML file that is read, in bytes."""
REST = types.MappingProxyType({"rest": True})
"""Metadata of the field for all tables that are no other field: `field(metadata=REST)`."""


def parse(cls: type[T], mapping: Mapping[str, Any] | None, where: str) -> T:
    """Return an instance of dataclass `cls` from `mapping`; errors contain the key path `where`."""
    settings = {} if mapping is None else mapping
    if isinstance(settings, cls):
        return settings
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where}: expected a mapping, got {_show(settings)}.")
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    hints = field_types(cls)  # type: ignore[arg-type]
    own, rest = _split(settings, fields)
    for key, value in own.items():
        if rest and key not in fields:
            nearest = suggest(key, fields.keys() - rest.keys())
            raise ConfigError(
                f"{where}: unknown key '{key}'. {nearest} A rule is a table, got {_show(value)}."
            )
    _check_keys(own, {k: f for k, f in fields.items() if k not in rest}, where)
    values = {k: convert(v, hints[k], f"{where}.{k}") for k, v in own.items()}
    values |= {k: convert(v, hints[k], where) for k, v in rest.items()}
    try:
        return cls(**values)
    except ConfigError as error:  # raised by __post_init__, which does not know the path
        raise ConfigError(f"{where}: {error}") from error


def check_fields(instance: Any) -> None:
    """Check and convert the fields of a frozen dataclass by their annotations.

    Call it from `__post_init__`, for instances that are not created by `parse`.
    """
    cls = type(instance)
    for name, hint in field_types(cls).items():  # type: ignore[arg-type]
        if name in cls.__dataclass_fields__ and not isinstance(hint, typing.ForwardRef):
            value = getattr(instance, name)
            converted = convert(value, hint, f"{cls.__name__}.{name}")
            if converted is not value:
                object.__setattr__(instance, name, converted)


def _split(
    settings: Mapping[str, Any], fields: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of fields, and all other tables for the field marked `REST`, if any."""
    marked = next((name for name, field in fields.items() if "rest" in field.metadata), None)
    if marked is None:
        return dict(settings), {}
    own = fields.keys() - {marked}
    rest = {k: v for k, v in settings.items() if k not in own and isinstance(v, Mapping)}
    return {k: v for k, v in settings.items() if k not in rest}, {marked: rest}


def _check_keys(settings: Mapping[str, Any], fields: Mapping[str, Any], where: str) -> None:
    for key in settings:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key '{key}'. {suggest(key, fields)}")
    for name, field in fields.items():
        defaults = (field.default, field.default_factory)
        if name not in settings and all(each is dataclasses.MISSING for each in defaults):
            raise ConfigError(f"{where}: key '{name}' is missing.")


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Return the evaluated type hints of `cls`. Evaluation takes milliseconds, hence the cache."""
    return typing.get_type_hints(cls)


def convert(value: Any, hint: Any, where: str) -> Any:
    """Check `value` against the type `hint`, and convert it where TOML needs that."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments, where)
    if origin is typing.Literal:
        return _one_of(value, arguments, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return parse(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(_one_of(value, [member.value for member in hint], where))
    if origin in _CONTAINERS:
        return _CONTAINERS[origin](value, arguments, where)
    return _convert_plain(value, origin or hint, where)


def _convert_union(value: Any, arguments: tuple[Any, ...], where: str) -> Any:
    allowed = [a for a in arguments if a is not type(None)]
    is_none = value is None or (isinstance(value, str) and value in NONE_SPELLINGS)
    if len(allowed) < len(arguments) and is_none:
        return None
    problems = []
    for choice in allowed:
        try:
            return convert(value, choice, where)
        except ConfigError as error:
            problems.append(str(error))
    raise ConfigError(problems[0] if len(problems) == 1 else " Or: ".join(problems))


def _one_of(value: Any, allowed: Sequence[Any], where: str) -> Any:
    for choice in allowed:
        if value == choice and isinstance(value, bool) == isinstance(choice, bool):
            return choice
    listed = ", ".join(repr(a) for a in allowed)
    raise ConfigError(f"{where}: {_show(value)} is not allowed. Allowed: {listed}.")


def _convert_list(value: Any, arguments: tuple[Any, ...], where: str) -> list[Any]:
    _want_sequence(value, where)
    element = arguments[0] if arguments else Any
    return [convert(v, element, f"{where}[{i}]") for i, v in enumerate(value)]


def _convert_tuple(value: Any, arguments: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    _want_sequence(value, where)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_convert_list(value, arguments[:1], where))
    if len(value) != len(arguments):
        raise ConfigError(f"{where}: expected {len(arguments)} values, got {len(value)}.")
    pairs = zip(value, arguments, strict=True)
    return tuple(convert(v, a, f"{where}[{i}]") for i, (v, a) in enumerate(pairs))


def _want_sequence(value: Any, where: str) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{where}: expected a list, got {_show(value)}.")


def _convert_mapping(value: Any, arguments: tuple[Any, ...], where: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a mapping, got {_show(value)}.")
    of_key, of_value = arguments or (Any, Any)
    return {
        convert(k, of_key, f"{where} key"): convert(v, of_value, f"{where}.{k}")
        for k, v in value.items()
    }


_CONTAINERS: dict[Any, Any] = {
    list: _convert_list,
    Sequence: _convert_list,
    tuple: _convert_tuple,
    dict: _convert_mapping,
    Mapping: _convert_mapping,
}


def _convert_number(value: Any, kind: type, where: str) -> Any:
    """Return a number, also one of numpy's, as `kind`."""
    if kind is int and (isinstance(value, numbers.Integral) or float(value).is_integer()):
        return int(value)
    if kind is int:
        raise ConfigError(f"{where}: expected int, got {_show(value)}.")
    try:
        return float(value)
    except OverflowError as error:
        raise ConfigError(f"{where}: {_show(value)} is too large for a float.") from error


def _convert_plain(value: Any, kind: Any, where: str) -> Any:
    if kind in (int, float) and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return _convert_number(value, kind, where)
    if kind is Path and value == "":  # Path("") would be the current folder
        raise ConfigError(f"{where}: expected a path, got '' (str).")
    if kind is Path and isinstance(value, str):
        return Path(value)
    is_flag = kind is int and isinstance(value, bool)
    if isinstance(kind, type) and (is_flag or not isinstance(value, kind)):
        raise ConfigError(f"{where}: expected {kind.__name__}, got {_show(value)}.")
    return value


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def load_toml(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file, with `"NA"` as None."""
    file = Path(path)
    return parse_toml(read_text(file, ConfigError, LARGEST_TOML), str(file))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the tables of TOML text, with `"NA"` as None; errors contain `where`."""
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # also for a number with thousands of digits
        raise ConfigError(f"{where}: not valid TOML: {error}.") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deep.") from error
    return typing.cast(dict[str, Any], _map_values(tables, lambda v: None if v == "NA" else v))


def dump_toml(tables: Mapping[str, Any]) -> str:
    """Return nested mappings of plain values as TOML, with None as `"NA"`."""
    return "\n".join(_toml_lines(tables, ())).strip() + "\n"


def _toml_lines(tables: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"[{'.'.join(_toml_key(p) for p in path)}]"] if path else []
    lines += [
        f"{_toml_key(k)} = {_toml_value(v)}"
        for k, v in tables.items()
        if not isinstance(v, Mapping)
    ]
    for key, value in tables.items():
        if isinstance(value, Mapping):
            lines += ["", *_toml_lines(value, (*path, key))]
    return lines


def _toml_key(key: str) -> str:
    bare = key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key)
    return key if bare else _toml_value(key)


def _toml_value(value: Any) -> str:
    if value is None:
        return '"NA"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(v) for v in value)}]"
    raise ConfigError(f"dump_toml: {_show(value)} has no TOML form.")


def _map_values(value: Any, change: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _map_values(v, change) for k, v in value.items()}
    if isinstance(value, list):
        return [_map_values(v, change) for v in value]
    return change(value)


def mesh_shape_of(text: str) -> tuple[int, ...]:
    """Return the shape of a mesh in words.

    >>> mesh_shape_of("8x8")
    (8, 8)
    """
    parts = text.lower().replace("×", "x").split("x")
    if not all(part.strip().isdigit() for part in parts):
        raise ConfigError(f"mesh '{text}': expected numbers of devices, such as 8 or 8x8.")
    return tuple(int(part) for part in parts)
