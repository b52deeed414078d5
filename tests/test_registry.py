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


def test_a_decorator_registers_and_leaves_the_thing_as_it_is():
    table = Registry[type]("model")
    assert table.entry("integer", "fixed")(int) is int
    assert table["fixed"] is int


def test_a_name_is_a_text_that_is_not_empty():
    table = Registry[int]("format")
    for name in (None, "", 3):
        with pytest.raises(RegistryError, match=f"registered by its name, got {name!r}"):
            table.register(name, 1)


def test_what_is_forgotten_may_be_registered_again():
    table = Registry[int]("format")
    table.register("integer", 1, aliases=["fixed"])
    table.forget("integer")
    assert "fixed" not in table
    table.register("fixed", 2)
    assert table["fixed"] == 2


def test_names_can_be_chosen_by_their_ending():
    table = Registry[int]("pass")
    for name in ("b_pass", "a", "a_pass"):
        table.register(name, 1)
    assert table.ending("_pass") == ("b_pass", "a_pass")


def test_a_cell_of_a_notebook_may_be_run_again():
    table = Registry[object]("pass")
    cells = [type("Mine", (), {"__module__": "__main__"}) for _ in range(2)]
    for cell in cells:
        table.register("mine", cell, aliases=["own"])
    assert table["own"] is cells[1]
    with pytest.raises(RegistryError, match="'mine' is already registered"):
        table.register("mine", type("Mine", (), {"__module__": "package"}))


def test_a_table_that_speaks_of_an_unknown_name_is_refused():
    table = Registry[int]("op")
    table.register("relu", 1)
    table.check(["relu"], "ROWS")
    with pytest.raises(RegistryError, match=r"ROWS: unknown op 'rellu'. Did you mean 'relu'"):
        table.check(["relu", "rellu"], "ROWS")
