import dataclasses
from typing import Any, Literal

import pytest

from chop.config import REST, convert, dump_toml, load_toml, parse
from chop.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Inner:
    width: int = 8
    mode: Literal["nearest", "floor"] = "nearest"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(f"width must be at least 1, got {self.width}.")


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = Inner()
    scale: float | None = None
    sizes: tuple[int, ...] = ()
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


def test_nested_mappings_become_dataclasses():
    given = {"name": "x", "inner": {"width": 4}, "scale": 1, "sizes": [1, 2], "extra": {"a": 1}}
    before = repr(given)
    assert parse(Outer, given, "run") == Outer("x", Inner(4), 1.0, (1, 2), {"a": 1})
    assert repr(given) == before


def test_none_means_all_defaults_and_an_instance_passes_through():
    assert parse(Inner, None, "run") == Inner()
    assert parse(Inner, Inner(3), "run") == Inner(3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nam": "x"}, "run: unknown key 'nam'. Did you mean 'name'?"),
        ({}, "run: key 'name' is missing."),
        ({"name": 3}, "run.name: expected str, got 3 (int)."),
        ({"name": "x", "inner": {"width": True}}, "run.inner.width: expected int, got True"),
        ({"name": "x", "inner": {"width": 2.5}}, "run.inner.width: expected int, got 2.5"),
        ({"name": "x", "inner": {"width": 0}}, "run.inner: width must be at least 1, got 0."),
        ({"name": "x", "inner": {"mode": "up"}}, "run.inner.mode: 'up' (str) is not allowed."),
        ({"name": "x", "inner": 4}, "run.inner: expected a mapping, got 4 (int)."),
        ({"name": "x", "sizes": [1, "a"]}, "run.sizes[1]: expected int, got 'a' (str)."),
        ({"name": "x", "sizes": "ab"}, "run.sizes: expected a list, got 'ab' (str)."),
    ],
)
def test_errors_name_the_path_the_value_and_the_remedy(given, message):
    with pytest.raises(ConfigError) as caught:
        parse(Outer, given, "run")
    assert str(caught.value).startswith(message)


def test_toml_round_trips_with_na_for_none(tmp_path):
    tables = {"a": 1, "b": None, "c": {"d.e": [1.5, True], "f": {"g": 'say "hi"\n'}}}
    file = tmp_path / "run.toml"
    file.write_text(dump_toml(tables))
    assert load_toml(file) == tables


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent.toml: no such file"):
        load_toml(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"bad.toml: not valid TOML"):
        load_toml(tmp_path / "bad.toml")


@dataclasses.dataclass(frozen=True)
class Part:
    size: int = 0


@dataclasses.dataclass(frozen=True)
class Whole:
    by: str = "name"
    parts: dict[str, Part] = dataclasses.field(default_factory=dict, metadata=REST)


def test_the_rest_field_takes_the_tables_that_no_field_has():
    assert parse(Whole, {"by": "x", "left": {"size": 2}}, "here") == Whole("x", {"left": Part(2)})
    assert parse(Whole, {"parts": {"size": 3}}, "here").parts == {"parts": Part(3)}


def test_an_error_in_the_rest_has_the_path_the_user_wrote():
    with pytest.raises(ConfigError, match=r"here.left: unknown key 'siez'. Did you mean 'size'"):
        parse(Whole, {"left": {"siez": 2}}, "here")


def test_a_key_that_is_no_table_is_a_misspelt_field():
    with pytest.raises(ConfigError, match=r"here: unknown key 'bye'. Did you mean 'by'"):
        parse(Whole, {"bye": "x"}, "here")


def test_a_whole_number_that_no_float_holds_is_refused():
    with pytest.raises(ConfigError, match=r"here: 1000.* is too large for a float"):
        convert(10**400, float, "here")
    assert convert(10**400, int, "here") == 10**400
