import pytest

from chop.errors import RegistryError
from chop.registry import Registry


def test_a_name_is_refused_twice():
    table = Registry[int]("format")
    table.register("integer", 1, aliases=["fixed"])
    for taken in ("integer", "fixed"):
        with pytest.raises(RegistryError, match=f"format '{taken}' is already registered"):
            table.register(taken, 2)


def test_a_miss_names_the_nearest_and_lists_the_known():
    table = Registry[int]("format")
    table.register("integer", 1)
    table.register("log", 2)
    with pytest.raises(RegistryError) as caught:
        table["intger"]
    message = "Unknown format 'intger'. Did you mean 'integer'? Known: integer, log."
    assert str(caught.value) == message


def test_an_alias_answers_for_its_name():
    table = Registry[int]("format")
    table.register("integer", 1, aliases=["fixed"])
    assert table["fixed"] == 1
    assert table.canonical("fixed") == "integer"
    assert list(table) == ["integer"]
