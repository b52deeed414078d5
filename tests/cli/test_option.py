"""Options are read off dataclasses."""

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from chop.cli.commands import COMMANDS
from chop.cli.option import (
    add_options,
    field_help,
    given_values,
    options_of,
    read_text,
    tables_of,
)


@dataclass(frozen=True)
class Inner:
    """The inner part."""

    rank: Annotated[int, "Columns of A."] = 8
    names: Annotated[tuple[str, ...] | None, "Layers to change."] = None


@dataclass(frozen=True)
class Outer:
    """The outer part."""

    mode: Annotated[Literal["a", "b"], "Way to work."] = "a"
    fast: Annotated[bool, "Save time."] = False
    inner: Inner = field(default_factory=Inner)
    flat: Inner | None = field(default=None, metadata={"prefix": ""})
    table: Mapping[str, Any] = field(default_factory=dict)


def parse(*words):
    options = options_of(Outer)
    parser = argparse.ArgumentParser()
    add_options(parser, options)
    return given_values(options, parser.parse_args(list(words)))


def test_every_plain_field_has_a_flag_and_nested_ones_carry_their_prefix():
    flags = {option.flag for option in options_of(Outer)}
    assert flags == {"--mode", "--fast", "--inner-rank", "--inner-names", "--rank", "--names"}


def test_tables_have_no_flag():
    assert tables_of(Outer) == ["table"]


@dataclass(frozen=True)
class Changed(Outer):
    """The same with another default."""

    fast: bool = True


def test_help_stands_beside_the_field_and_is_inherited():
    for cls in (Outer, Changed):
        options = {option.flag: option for option in options_of(cls)}
        assert options["--rank"].help == "Columns of A."
        assert options["--fast"].help == "Save time."
        assert options["--fast"].group == "The outer part"
    assert options["--fast"].default is True


def test_only_what_was_given_is_given():
    assert parse() == {}
    assert parse("--inner-rank", "4", "--names", "x,y", "--fast") == {
        "inner": {"rank": 4},
        "flat": {"names": ["x", "y"]},
        "fast": True,
    }


def test_a_switch_can_be_turned_off():
    assert parse("--no-fast") == {"fast": False}


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("3", int, 3),
        ("3e-4", float | None, 3e-4),
        ("none", float | None, None),
        ("NA", int | None, None),
        ("1,3,8,8", tuple[int, ...], [1, 3, 8, 8]),
        ("4", int | list[int], 4),
        ("4,2", int | list[int], [4, 2]),
        ("out/x", Path, "out/x"),  # the configuration makes the path
        ("b", Literal["a", "b"], "b"),
    ],
)
def test_text_is_read_by_type(text, hint, value):
    assert read_text(text, hint) == value


@pytest.mark.parametrize(
    ("text", "hint", "message"),
    [
        ("x", int, "expected INT, got 'x'"),
        ("c", Literal["a", "b"], "expected a, b, got 'c'"),
        ("1,x", tuple[int, ...], "expected INT, got 'x'"),
    ],
)
def test_text_of_another_type_is_refused(text, hint, message):
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        read_text(text, hint)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_and_table_of_every_command_has_a_help_of_its_own(name):
    config = COMMANDS[name].config
    helps = {option.flag: option.help for option in options_of(config)}
    assert all(field_help(config)[table][0] for table in tables_of(config))
    assert [flag for flag, text in helps.items() if not text] == []
    own = {flag: text for flag, text in helps.items() if "-target-modules" not in flag}
    assert len(set(own.values())) == len(own), "two options share a help"
    assert all(text[0].isupper() or text.startswith(("local", "cpu")) for text in helps.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_no_two_options_of_a_command_share_a_flag(name):
    flags = [option.flag for option in options_of(COMMANDS[name].config)]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("name", COMMANDS)
def test_configurations_are_frozen(name):
    assert dataclasses.fields(COMMANDS[name].config) is not None
    assert COMMANDS[name].config.__dataclass_params__.frozen
