"""Command-line options read off a dataclass: its fields, their types and its docstring.

A docstring explains fields as in "`rank`: columns of A. `low` and `high`: bounds." Metadata of a
field may say `positional` (no dashes), `prefix` (of the flags of a nested dataclass, instead of the
field's name), `choices` (a function that gives names to complete) and `lister` (a command that
prints them when they are asked for, because they change), and `tables` (a field of tables whose
flag names some of them, as they are by default).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.config import NONE_SPELLINGS

LISTS = (list, tuple, Sequence)
TABLES = (dict, Mapping)
PLAIN: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "INT"),
    float: (float, "NUMBER"),
    str: (str, "TEXT"),
    Path: (str, "PATH"),  # `chop.config` makes paths, and refuses an empty one
}
"""Type -> how its text is read, and what it is called in the help."""
SHOWN_VALUES = 3
"""Options with more values list them in the help instead of beside the flag."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One value that the command line can give: `path` is its place in the configuration."""

    path: tuple[str, ...]
    flag: str
    hint: Any
    help: str
    group: str
    default: Any
    is_positional: bool = False
    choices: Callable[[], Iterable[str]] | None = None
    lister: str = ""

    @property
    def dest(self) -> str:
        """The name of the value in argparse's namespace."""
        return ".".join(self.path)

    @property
    def values(self) -> tuple[str, ...]:
        """The values to complete, none where any text will do."""
        if self.choices is not None:
            return tuple(self.choices())
        return tuple(v for v in _literals(self.hint) if isinstance(v, str))

    @property
    def is_list(self) -> bool:
        """Whether it is several values."""
        return any(_origin(hint) in LISTS for hint in _without_none(self.hint))

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off: `--x` and `--no-x`."""
        return _without_none(self.hint) == (bool,)


def options_of(cls: type, path: tuple[str, ...] = (), prefix: str = "") -> list[Option]:
    """The options of dataclass `cls` and of the dataclasses in it; tables have none."""
    hints = typing.get_type_hints(cls)
    found: list[Option] = []
    for field in dataclasses.fields(cls):
        hint, here = hints[field.name], (*path, field.name)
        nested = _dataclass_in(hint)
        if nested is not None:
            inner = field.metadata.get("prefix", field.name)
            found += options_of(nested, here, f"{prefix}{inner}-" if inner else prefix)
        elif "rest" not in field.metadata and (_is_readable(hint) or "tables" in field.metadata):
            found.append(_option(cls, field, hint, here, prefix))
    # the class's own options first, then those of what it is made of, as its bases are listed
    ranks = {_title(base): rank for rank, base in enumerate(cls.__mro__)}
    return sorted(found, key=lambda option: ranks.get(option.group, 0))


def _dataclass_in(hint: Any) -> type | None:
    found = (h for h in _without_none(hint) if dataclasses.is_dataclass(h))
    return next((h for h in found if isinstance(h, type)), None)


def _option(
    cls: type, field: dataclasses.Field[Any], hint: Any, path: tuple[str, ...], prefix: str
) -> Option:
    owner = _owner(cls, field.name)
    return Option(
        path,
        f"--{prefix}{field.name}".replace("_", "-"),
        hint,
        field_help(owner).get(field.name, ""),
        _title(owner),
        default_of(field),
        bool(field.metadata.get("positional")),
        field.metadata.get("choices"),
        field.metadata.get("lister", ""),
    )


def _title(cls: type) -> str:
    return (inspect.getdoc(cls) or "").split("\n")[0].rstrip(".")


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, `MISSING` where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _owner(cls: type, name: str) -> type:
    """The class of `cls`'s ancestry whose docstring explains the field."""
    declared = [base for base in cls.__mro__ if name in vars(base).get("__annotations__", {})]
    return next((base for base in declared if name in field_help(base)), declared[0])


NAMES = r"`\w+`(?:(?:,| and) `\w+`)*"


@functools.cache
def field_help(cls: type) -> dict[str, str]:
    """Field -> its sentence in the docstring: "`name`: text", up to the next one."""
    text = inspect.getdoc(cls) or ""
    pattern = rf"({NAMES}):\s+(.*?)(?=\s+{NAMES}:\s|\n\n|\Z)"
    found = re.findall(pattern, text, re.DOTALL)
    return {
        name: " ".join(told.split())
        for names, told in found
        for name in re.findall(r"`(\w+)`", names)
    }


def tables_of(cls: type) -> list[str]:
    """The fields that are tables: they come from a file or from `--set`."""
    hints = typing.get_type_hints(cls)
    return [f.name for f in dataclasses.fields(cls) if _origin(hints[f.name]) in TABLES]


# -- reading text ------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Give `parser` the options, in groups by the dataclass that declares them."""
    given = list(options)
    titles = dict.fromkeys(option.group for option in given)
    groups = {title: parser.add_argument_group(title) for title in titles}
    for option in sorted(given, key=takes_the_rest):
        _add(groups[option.group], option)


def takes_the_rest(option: Option) -> bool:
    """Whether it is all words that stand alone, behind those that others take."""
    return option.is_positional and option.is_list


def _add(group: Any, option: Option) -> None:
    told = {"default": argparse.SUPPRESS, "help": _help(option)}
    if option.is_positional:
        name = option.path[-1]
        count = "*" if option.is_list else "?"
        group.add_argument(option.dest, nargs=count, metavar=name.upper(), **told)
    elif option.is_switch:
        action = argparse.BooleanOptionalAction
        group.add_argument(option.flag, dest=option.dest, action=action, **told)
    else:
        read = functools.partial(read_text, hint=option.hint)
        metavar = _metavar(option.hint)
        group.add_argument(option.flag, dest=option.dest, type=read, metavar=metavar, **told)


def _help(option: Option) -> str:
    told = option.help.removesuffix(".")
    values = _literals(option.hint)
    if len(values) > SHOWN_VALUES:
        told += f": {', '.join(map(str, values))}"
    if option.default not in (None, (), {}, dataclasses.MISSING) and not option.is_positional:
        told += f" (default: {_show(option.default)})"
    return told.replace("%", "%%")


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def given_values(options: Iterable[Option], namespace: argparse.Namespace) -> dict[str, Any]:
    """What the command line gave, as nested mappings."""
    given: dict[str, Any] = {}
    for option in options:
        if hasattr(namespace, option.dest):
            table = given
            for key in option.path[:-1]:
                table = table.setdefault(key, {})
            table[option.path[-1]] = getattr(namespace, option.dest)
    return given


def read_text(text: str, hint: Any) -> Any:
    """The value of type `hint` that `text` spells; lists are separated by commas."""
    choices = _without_none(hint)
    if len(choices) < len(_members(hint)) and text in NONE_SPELLINGS:
        return None
    for choice in choices:
        try:
            return _read(text, choice)
        except ValueError:
            continue
    allowed = ", ".join(map(str, _literals(hint))) or _metavar(hint)
    raise argparse.ArgumentTypeError(f"expected {allowed}, got '{text}'")


def _read(text: str, hint: Any) -> Any:
    if _origin(hint) in (*TABLES, *LISTS) and not text.replace(",", "").strip():
        raise argparse.ArgumentTypeError("empty. Give at least one value, separated by commas")
    if _origin(hint) in TABLES:
        return {name.strip(): {} for name in text.split(",") if name.strip()}
    if _origin(hint) in LISTS:
        element = typing.get_args(hint)[0]
        return [read_text(part.strip(), element) for part in text.split(",") if part.strip()]
    if typing.get_origin(hint) is typing.Literal:
        spelled = {str(value): value for value in typing.get_args(hint)}
        if text not in spelled:
            raise ValueError(text)
        return spelled[text]
    return PLAIN[hint][0](text)


def _metavar(hint: Any) -> str:
    literals = _literals(hint)
    if len(literals) > SHOWN_VALUES:
        return "NAME"
    if literals:
        return "{" + ",".join(map(str, literals)) + "}"
    choice = _without_none(hint)[-1]
    if _origin(choice) in TABLES:
        return "NAME,…"
    if _origin(choice) in LISTS:
        return f"{_metavar(typing.get_args(choice)[0])},…"
    return PLAIN[choice][1] if choice in PLAIN else "ON|OFF"


def _members(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _without_none(hint: Any) -> tuple[Any, ...]:
    return tuple(h for h in _members(hint) if h is not type(None))


def _literals(hint: Any) -> tuple[Any, ...]:
    literal = [h for h in _without_none(hint) if typing.get_origin(h) is typing.Literal]
    return tuple(value for each in literal for value in typing.get_args(each))


def _origin(hint: Any) -> Any:
    return typing.get_origin(hint) or hint


def _is_readable(hint: Any) -> bool:
    """Whether text on a command line can be a value of this type."""
    return all(_is_plain(choice) for choice in _without_none(hint))


def _is_plain(hint: Any) -> bool:
    if _origin(hint) in LISTS:
        return all(_is_readable(h) for h in typing.get_args(hint) if h is not Ellipsis)
    return hint is bool or hint in PLAIN or typing.get_origin(hint) is typing.Literal
