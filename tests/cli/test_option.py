"""Options are read off dataclasses."""

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from chop.cli.commands import COMMANDS
from chop.cli.option import add_options, given_values, options_of, read_text, tables_of


@dataclass(frozen=True)
class Inner:
    """The inner part.

    `rank`: how many columns
    of A. `names`: what to touch.
    """

    rank: int = 8
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Outer:
    """The outer part.

    `mode`: how. `fast`: whether to
    hurry.
    """

    mode: Literal["a", "b"] = "a"
    fast: bool = False
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


def test_help_comes_from_the_docstring_and_may_span_lines():
    told = {option.flag: option.help for option in options_of(Outer)}
    assert told["--rank"] == "how many columns of A."
    assert told["--fast"] == "whether to hurry."


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
def test_every_option_of_every_command_is_explained(name):
    options = options_of(COMMANDS[name].load_config())
    assert [option.flag for option in options if not option.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_no_two_options_of_a_command_share_a_flag(name):
    flags = [option.flag for option in options_of(COMMANDS[name].load_config())]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("name", COMMANDS)
def test_configurations_are_frozen(name):
    assert dataclasses.fields(COMMANDS[name].load_config()) is not None
    assert COMMANDS[name].load_config().__dataclass_params__.frozen
