"""A search is one plan; giving its parts one by one makes the same plan."""

import inspect

import pytest

from chop.errors import ConfigError
from chop.search import Choice, SearchPlan, Space, search
from chop.search.search_plan import make_plan

SPACE = Space({"x": Choice((1, 2, 3))})
UP = {"y": "maximize"}


def value(point, trial):
    return {"y": float(point["x"])}


def test_a_plan_and_its_parts_search_alike(tmp_path):
    plan = SearchPlan(SPACE, value, UP, trials=3, sampler="grid", storage=tmp_path / "a.db")
    parts = {"trials": 3, "sampler": "grid", "storage": tmp_path / "b.db"}
    found = [search(plan), search(SPACE, value, UP, **parts)]
    assert [r.best["params"] for r in found] == [{"x": 3}, {"x": 3}]
    strip = [[(t["params"], t["values"]) for t in r.trials] for r in found]
    assert strip[0] == strip[1]


def test_every_part_has_a_name_and_the_three_first_a_place():
    assert make_plan(None, value, UP, space=SPACE, trials=1) == SearchPlan(
        SPACE, value, UP, trials=1
    )
    assert make_plan(SPACE, value, trials=1).objectives == {"accuracy": "maximize"}
    taken = inspect.signature(search).parameters
    assert len(taken) <= 6  # the settings are fields of the plan


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sampelr": "tpe", "trials": 1}, "unknown setting 'sampelr'. Did you mean 'sampler'"),
        ({}, "trials is not given"),
        ({"trials": 1, "workers": 0}, "workers is 0. Allowed: 1 or more"),
        ({"trials": 0}, "trials is 0. Allowed: 1 or more"),
    ],
)
def test_a_part_that_is_wrong_is_named(given, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=told):
        search(SPACE, value, UP, **given)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_holds_everything():
    plan = SearchPlan(SPACE, value, UP, trials=1)
    with pytest.raises(ConfigError, match="a SearchPlan holds everything"):
        search(plan, trials=2)
    with pytest.raises(ConfigError, match="expected a SearchPlan, or a space and a function"):
        search(SPACE)


def test_files_of_trials_are_beside_the_study(tmp_path):
    beside = SearchPlan(SPACE, value, trials=1, name="n", storage=tmp_path / "s.db")
    assert beside.folder == tmp_path / "n"
    far = SearchPlan(SPACE, value, trials=1, name="n", storage="postgresql://host/studies")
    assert far.folder.parts[-3:] == ("out", "search", "n")
