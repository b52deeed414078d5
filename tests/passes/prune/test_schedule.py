"""The cubic schedule starts, ends and rises as its formula says, and drives gradual pruning."""

from __future__ import annotations

import doctest

import pytest
from compression_models import mlp_graph

import chop.passes as passes
from chop.errors import ConfigError
from chop.nn.modules import semi_structured
from chop.passes.prune import granularity, schedule
from chop.passes.prune.schedule import CubicSchedule


@pytest.mark.parametrize("module", [granularity, schedule, semi_structured])
def test_examples_in_the_docstrings_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0


def test_sparsity_rises_from_initial_to_final_and_stays() -> None:
    plan = CubicSchedule(final=0.9, begin=10, end=50, initial=0.2)
    values = [plan(step) for step in range(80)]
    assert values[:11] == [pytest.approx(0.2)] * 11 and values[50:] == [0.9] * 30
    assert values == sorted(values)


def test_pruning_is_due_every_so_often_and_at_the_end() -> None:
    plan = CubicSchedule(final=0.5, begin=2, end=9, every=3)
    assert [step for step in range(15) if plan.is_due(step)] == [2, 5, 8, 9]


def test_gradual_pruning_reaches_the_final_sparsity() -> None:
    graph, plan, seen = mlp_graph(), CubicSchedule(final=0.75, begin=0, end=4), []
    for step in range(5):
        args = {"weight": {"sparsity": plan(step), "method": "random"}}
        seen.append(passes.prune_transform_pass(graph, args)[1]["sparsity"])
    assert seen == sorted(seen) and seen[-1] == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"final": 1.0}, "expected 0 <= initial <= final < 1, got initial=0.0, final=1.0"),
        ({"final": 0.5, "initial": 0.6}, "got initial=0.6, final=0.5"),
        ({"final": 0.5, "end": 0}, "expected 0 <= begin < end and every >= 1, got begin=0, end=0"),
        ({"final": 0.5, "every": 0}, "every=0"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(given: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CubicSchedule(**({"begin": 0, "end": 10} | given))
