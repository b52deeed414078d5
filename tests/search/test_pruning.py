"""Pruning with several objectives: rules over reports, and searches that end trials by them."""

import itertools
import random

import pytest

from chop.search import Choice, Space, search
from chop.search.pruning import (
    RULES,
    MedianRule,
    RungRule,
    hypervolume,
    rank_by_first,
    rank_by_hypervolume,
)

SPACE = Space({"x": Choice(tuple(range(24)))})
BOTH = {"accuracy": "maximize", "bytes": "minimize"}


def grid_volume(points, corner, high):
    """The volume by counting unit cubes."""
    axes = [range(low, top) for low, top in zip(corner, high, strict=True)]
    return sum(
        any(all(p > c for p, c in zip(point, cell, strict=True)) for point in points)
        for cell in itertools.product(*axes)
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_hypervolume_is_that_of_counted_cubes(size):
    draw = random.Random(size)
    corner, high = (0,) * size, (5,) * size
    for count in (0, 1, 2, 5, 9):
        points = [tuple(draw.randint(1, 5) for _ in range(size)) for _ in range(count)]
        floats = [tuple(map(float, point)) for point in points]
        assert hypervolume(floats, tuple(map(float, corner))) == grid_volume(points, corner, high)


def test_ranks_are_places_and_dominated_ones_come_last():
    draw = random.Random(0)
    for _ in range(50):
        scores = [(draw.randint(0, 4), draw.randint(0, 4)) for _ in range(6)]
        scores = [tuple(map(float, each)) for each in scores]
        places = rank_by_hypervolume(scores)
        assert sorted(places) == list(range(6))
        for a, b in itertools.permutations(range(6), 2):
            better = all(x >= y for x, y in zip(scores[a], scores[b], strict=True))
            assert not (better and scores[a] != scores[b]) or places[a] < places[b]


def test_what_is_not_known_of_all_does_not_count():
    assert rank_by_hypervolume([(0.1, 9.0), (0.5,)]) == rank_by_first([(0.1,), (0.5,)]) == [1, 0]


def test_a_cheap_trial_survives_where_the_first_objective_alone_would_end_it():
    others = [{1: (0.9, -8.0)}, {1: (0.8, -7.0)}, {1: (0.85, -9.0)}]
    cheap = {1: (0.7, -1.0)}
    one = {"eta": 2, "brackets": False}
    assert RungRule(rank_by_first, **one).ends(0, 1, cheap, others)
    assert not RungRule(rank_by_hypervolume, **one).ends(0, 1, cheap, others)


def test_nothing_ends_between_rungs_or_among_too_few():
    others = [dict.fromkeys(range(1, 10), (1.0,))] * 5
    rule = RungRule(eta=3, brackets=False)
    bad = dict.fromkeys(range(1, 10), (0.0,))
    assert [step for step in range(1, 10) if rule.ends(0, step, bad, others)] == [1, 3, 9]
    assert not rule.ends(0, 1, bad, others[:1])
    assert not MedianRule().ends(0, 1, bad, others[:4])
    assert MedianRule().ends(0, 1, bad, others)


def test_brackets_let_some_trials_start_slowly():
    others = [dict.fromkeys(range(1, 28), (1.0,))] * 5
    bad = dict.fromkeys(range(1, 28), (0.0,))

    def first_end(number):
        return next(s for s in range(1, 28) if RungRule().ends(number, s, bad, others))

    assert {first_end(number) for number in range(20)} == {1, 3, 9}


def learns(point, trial):
    """Accuracy grows with x, and so do bytes: every finished trial is on the front."""
    trial.expect({"bytes": point["x"]})
    for step in range(1, 10):
        trial.report(step, point["x"] * step)
    return {"accuracy": point["x"] * 9, "bytes": point["x"]}


@pytest.mark.parametrize(("name", "sampler"), [*((n, "grid") for n in RULES), ("median", "tpe")])
def test_a_search_with_several_objectives_ends_trials(tmp_path, name, sampler):
    options = {"trials": 24, "sampler": sampler, "pruner": name}
    options["storage"] = tmp_path / "s.journal"
    result = search(SPACE, learns, BOTH, **options)
    states = {t["state"] for t in result.trials if "copied_from" not in t["attributes"]}
    assert states == {"complete", "pruned"}
    assert result.pareto_front()
    assert all("reported" not in t["attributes"] for t in result.trials)


def test_the_first_objective_may_be_one_to_minimise(tmp_path):
    def errs(point, trial):
        trial.report(1, point["x"])
        return {"loss": point["x"], "bytes": 1}

    options = {"trials": 24, "sampler": "grid", "pruner": "successive_halving"}
    ways = {"loss": "minimize", "bytes": "minimize"}
    result = search(SPACE, errs, ways, storage=tmp_path / "s.journal", **options)
    kept = [t["params"]["x"] for t in result.trials if t["state"] == "complete"]
    ended = [t["params"]["x"] for t in result.trials if t["state"] == "pruned"]
    assert 0 in kept and sum(ended) / len(ended) > sum(kept) / len(kept)
