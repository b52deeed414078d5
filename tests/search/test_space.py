import random
import tomllib

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chop.errors import ConfigError
from chop.registry import RegistryError
from chop.search import SPACES, Choice, Integer, Real, Space
from chop.search.samplers import RandomTrial, distribution

DIMENSIONS = (
    Choice((1, "two", None, False)),
    Integer(1, 8),
    Integer(2, 11, step=3),
    Integer(1, 1000, log=True),
    Real(-1.0, 1.0),
    Real(1e-5, 1.0, log=True),
)


class Conditional(Space):
    """Depth is asked for only where kind is 'deep'."""

    def __init__(self):
        super().__init__({"kind": Choice(("flat", "deep")), "depth": Integer(1, 3)})

    @property
    def size(self):
        return 4

    def suggest(self, trial):
        point = {"kind": self.dimensions["kind"].suggest("kind", trial)}
        if point["kind"] == "deep":
            point["depth"] = self.dimensions["depth"].suggest("depth", trial)
        return point


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=repr)
def test_what_a_sampler_suggests_is_in_the_dimension(dimension):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(50):
        trial = study.ask()
        value = dimension.suggest("d", trial)
        assert value in dimension
        assert dimension.points is None or value in dimension.points
        assert trial.distributions["d"] == distribution(dimension)


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=repr)
def test_a_die_draws_from_the_same_values_as_a_sampler(dimension):
    generator = random.Random(0)
    drawn = {dimension.suggest("d", RandomTrial(generator)) for _ in range(300)}
    assert all(value in dimension for value in drawn)
    if dimension.points is not None and len(dimension.points) < 20:
        assert drawn == set(dimension.points)


@given(st.integers(-20, 20), st.integers(0, 30), st.integers(1, 7))
def test_an_integer_ends_at_the_last_whole_step(low, length, step):
    dimension = Integer(low, low + length, step)
    assert dimension.high == dimension.points[-1]
    assert list(dimension.points) == list(range(low, low + length + 1, step))


def test_the_size_counts_the_points():
    assert Space({"a": Choice((1, 2)), "b": Integer(0, 6, step=2)}).size == 8
    assert Space({"a": Choice((1, 2)), "b": Real(0.0, 1.0)}).size is None
    assert Space({"a": Real(1.0, 1.0)}).size == 1


def test_a_product_has_the_points_of_both():
    both = Space({"a": Choice((1, 2))}) * Conditional()
    assert list(both.dimensions) == ["a", "kind", "depth"]
    assert both.size == 2 * 4
    generator = random.Random(0)
    points = [both.suggest(RandomTrial(generator)) for _ in range(50)]
    assert {len(point) for point in points} == {2, 3}
    assert all(("depth" in point) == (point["kind"] == "deep") for point in points)


def test_a_product_of_products_is_flat():
    a, b, c = (Space({name: Choice((1, 2))}) for name in "abc")
    assert len((a * (b * c)).factors) == 3


def test_a_product_refuses_a_name_that_is_in_both():
    with pytest.raises(ConfigError, match="dimension 'a' is in two factors of a product"):
        Space({"a": Choice((1,))}) * Space({"a": Choice((2,))})


TOML = """
[values]
width = [4, 8]
depth = {low = 1, high = 9, step = 2}
lr = {low = 1e-5, high = 1e-2, log = true}
momentum = {low = 0, high = 0.9}
"""


def test_a_space_is_read_from_toml():
    space = Space.from_config(tomllib.loads(TOML), "search.space")
    assert space.dimensions == {
        "width": Choice((4, 8)),
        "depth": Integer(1, 9, 2),
        "lr": Real(1e-5, 1e-2, log=True),
        "momentum": Real(0.0, 0.9),
    }


def test_tables_of_several_kinds_are_a_product():
    SPACES.register("conditional", lambda table, where, subject: Conditional())
    try:
        tables = {"values": {"a": [1, 2]}, "conditional": {}}
        assert Space.from_config(tables, "space").size == 8
    finally:
        del SPACES._things["conditional"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, r"space: no space is given\. Known: "),
        ({"valeus": {}}, r"space: unknown kind of space 'valeus'\. Did you mean 'values'\?"),
        ({"values": []}, r"space\.values: expected a mapping"),
        ({"values": {"a": []}}, r"space\.values\.a: Choice: there is nothing to choose from"),
        ({"values": {"a": 3}}, r"space\.values\.a: expected list, got 3"),
        ({"values": {"a": [[1]]}}, r"a: Choice: \[1\] \(list\) is not plain data"),
        ({"values": {"a": [1, True]}}, r"a: Choice: two of \[1, True\] are equal"),
        ({"values": {"a": {"low": 1}}}, r"space\.values\.a: key 'high' is missing"),
        ({"values": {"a": {"low": 1, "hihg": 2}}}, r"unknown key 'hihg'\. Did you mean 'high'\?"),
        ({"values": {"a": {"low": 3, "high": 2}}}, r"a: Integer: low is 3 and high is 2"),
        ({"values": {"a": {"low": 0, "high": 2, "log": True}}}, "Allowed with log: greater than 0"),
        ({"values": {"a": {"low": 0, "high": 2, "step": 0}}}, "step is 0. Allowed: at least 1"),
        ({"values": {"a": {"low": 0, "high": 0.5, "step": 2}}}, r"a\.step: 2\. Allowed with whole"),
    ],
)
def test_a_bad_table_is_refused_with_its_place(table, words):
    with pytest.raises(ConfigError, match=words):
        Space.from_config(table, "space")


def test_a_dimension_must_be_one():
    with pytest.raises(ConfigError, match=r"dimension 'a' is \[1, 2\]\. Allowed: Choice, Integer"):
        Space({"a": [1, 2]})


def test_a_point_is_checked_against_the_space():
    space = Space({"width": Choice((4, 8)), "depth": Integer(1, 3), "rate": Real(0.0, 1.0)})
    space.check({"width": 4, "depth": 2, "rate": 0.5}, "initial")
    with pytest.raises(ConfigError, match=r"unknown dimension 'widht'\. Did you mean 'width'\?"):
        space.check({"widht": 4}, "initial")
    for name, value in (("width", 5), ("depth", 4), ("depth", True), ("rate", 2.0), ("rate", "x")):
        with pytest.raises(ConfigError, match=rf"initial\.{name}: {value!r} is not in"):
            space.check({name: value}, "initial")


def test_a_kind_of_space_is_registered_once():
    with pytest.raises(RegistryError, match="already registered"):
        SPACES.register("values", lambda table, where, subject: Conditional())
