"""Command-line options read from the fields of a dataclass.

The help of an option stands beside its field: `rank: Annotated[int, "Columns of A."] = 8`. Metadata
of a field may hold `positional` (a word without a flag; 2: the second word, which has a flag too),
`prefix` (before the flags of a nested dataclass; default: the field's name), `choices` (a function
that returns names to complete), `lister` (a shell command that prints them at completion time) and
`tables` (the flag names tables, each with its defaults).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import keyword
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeGuard

from chop.config import NONE_SPELLINGS, field_types

LISTS = (list, tuple, Sequence)
TABLES = (dict, Mapping)
PLAIN: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "INT"),
    float: (float, "NUMBER"),
    str: (str, "TEXT"),
    Path: (str, "PATH"),  # `chop.config` makes paths, and refuses an empty one
}
"""Type -> function that reads its text, and its name in the help."""
SHOWN_VALUES = 3
"""Options with more values list them in the help instead of beside the flag."""


@dataclasses.dataclass(frozen=True)
class CommandOption:
    """One option of a command; `path` is its key in the configuration."""

    path: tuple[str, ...]
    flag: str
    hint: Any
    help: str
    group: str
    default: Any
    is_positional: bool = False
    has_flag: bool = True
    choices: Callable[[], Iterable[str]] | None = None
    lister: str = ""

    @property
    def dest(self) -> str:
        """Name of the value in argparse's namespace."""
        return ".".join(self.path)

    @property
    def parameter(self) -> str:
        """Name of the option as a keyword argument in Python."""
        name = self.flag.removeprefix("--").replace("-", "_")
        return f"{name}_" if keyword.iskeyword(name) else name

    @property
    def values(self) -> tuple[str, ...]:
        """Values to complete; empty if any text is allowed."""
        if self.choices is not None:
            return tuple(self.choices())
        return tuple(v for v in _literals(self.hint) if isinstance(v, str))

    @property
    def is_list(self) -> bool:
        """True if the option takes several values."""
        return any(_origin(hint) in LISTS for hint in _without_none(self.hint))

    @property
    def is_switch(self) -> bool:
        """True for a pair of flags `--x` and `--no-x`."""
        return _without_none(self.hint) == (bool,)


def options_of(cls: type, path: tuple[str, ...] = (), prefix: str = "") -> list[CommandOption]:
    """Return the options of dataclass `cls` and of its nested dataclasses; tables have none."""
    hints, helps = field_types(cls), field_help(cls)
    options: list[CommandOption] = []
    for field in dataclasses.fields(cls):
        hint, key = hints[field.name], (*path, field.name)
        nested = next((h for h in _without_none(hint) if _is_dataclass(h)), None)
        if nested is not None:
            inner = field.metadata.get("prefix", field.name)
            options += options_of(nested, key, f"{prefix}{inner}-" if inner else prefix)
        elif "rest" not in field.metadata and (_is_readable(hint) or "tables" in field.metadata):
            text, owner = helps.get(field.name, ("", cls))
            options.append(
                CommandOption(
                    key,
                    f"--{prefix}{field.name.rstrip('_')}".replace("_", "-"),
                    hint,
                    text,
                    _title(owner),
                    default_of(field),
                    bool(field.metadata.get("positional")),
                    field.metadata.get("positional") is not True,
                    field.metadata.get("choices"),
                    field.metadata.get("lister", ""),
                )
            )
    # the options of the class itself come first, then those of its bases in their order
    ranks = {_title(base): rank for rank, base in enumerate(cls.__mro__)}
    seconds = [
        (*path, f.name) for f in dataclasses.fields(cls) if f.metadata.get("positional") == 2
    ]

    def place(option: CommandOption) -> tuple[bool, int]:
        return option.path in seconds, ranks.get(option.group, 0)

    return sorted(options, key=place)


@functools.cache
def field_help(cls: type) -> dict[str, tuple[str, type]]:
    """Return, for each documented field of `cls`, its help and the class that documents it."""
    helps: dict[str, tuple[str, type]] = {}
    for base in reversed(cls.__mro__):
        hints = typing.get_type_hints(base, include_extras=True)
        for name in inspect.get_annotations(base):
            if typing.get_origin(hints[name]) is Annotated:
                helps[name] = (hints[name].__metadata__[0], base)
    return helps


def _is_dataclass(hint: Any) -> TypeGuard[type]:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _title(cls: type) -> str:
    return (inspect.getdoc(cls) or "").split("\n")[0].rstrip(".")


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or `MISSING`."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def tables_of(cls: type) -> list[str]:
    """Return the fields that are tables: they come from a file or from `--set`."""
    hints = field_types(cls)
    return [f.name for f in dataclasses.fields(cls) if _origin(hints[f.name]) in TABLES]


# -- argparse ----------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser, options: Sequence[CommandOption]) -> None:
    """Add the options to `parser`, grouped by the dataclass that documents them."""
    titles = dict.fromkeys(option.group for option in options)
    groups = {title: parser.add_argument_group(title) for title in titles}
    for option in sorted(options, key=takes_the_rest):
        _add(groups[option.group], option)


def takes_the_rest(option: CommandOption) -> bool:
    """Return True for an option that takes all remaining words without a flag."""
    return option.is_positional and option.is_list


def _add(group: Any, option: CommandOption) -> None:
    common = {"default": argparse.SUPPRESS, "help": described(option).replace("%", "%%")}
    if option.is_positional:
        count = "*" if option.is_list else "?"
        group.add_argument(option.dest, nargs=count, metavar=option.path[-1].upper(), **common)
    if not option.has_flag:
        return
    if option.is_switch:
        action = argparse.BooleanOptionalAction
        group.add_argument(option.flag, dest=option.dest, action=action, **common)
    else:
        read = functools.partial(read_text, hint=option.hint)
        metavar = _metavar(option.hint)
        group.add_argument(option.flag, dest=option.dest, type=read, metavar=metavar, **common)


def described(option: CommandOption) -> str:
    """Return the help of an option with its allowed values and its default."""
    text = option.help.removesuffix(".")
    values = _literals(option.hint)
    if len(values) > SHOWN_VALUES:
        text += f": {', '.join(map(str, values))}"
    if option.default not in (None, (), {}, dataclasses.MISSING) and not option.is_positional:
        text += f" (default: {_show(option.default)})"
    return text


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def given_values(options: Iterable[CommandOption], namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the values of a command line as nested mappings."""
    values = vars(namespace)
    return nest({option.path: values[option.dest] for option in options if option.dest in values})


def nest(values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Return values by path as nested mappings.

    >>> nest({("out",): "x", ("weight", "sparsity"): 0.5})
    {'out': 'x', 'weight': {'sparsity': 0.5}}
    """
    tables: dict[str, Any] = {}
    for path, value in values.items():
        table = tables
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table[path[-1]] = value
    return tables


def read_text(text: str, hint: Any) -> Any:
    """Return the value of type `hint` that `text` spells; commas separate the items of lists."""
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
    """Return True if a command line can spell values of this type."""
    return all(_is_plain(choice) for choice in _without_none(hint))


def _is_plain(hint: Any) -> bool:
    if _origin(hint) in LISTS:
        return all(_is_readable(h) for h in typing.get_args(hint) if h is not Ellipsis)
    return hint is bool or hint in PLAIN or typing.get_origin(hint) is typing.Literal
