"""Communication of parameters that overlaps with arithmetic."""

import dataclasses

import pytest
from covering import first_and_slow
from distributed.models import SLOW_DEVICES, bert
from distributed.test_optimum import GROUP, all_decisions, small_problem

from chop.distributed.memory_search import Solver
from chop.distributed.mesh import Mesh
from chop.distributed.plan import make_plan
from chop.distributed.pricing import price_decisions
from chop.distributed.program import program_of


@pytest.mark.parametrize("group", first_and_slow(range(60), 2))
def test_no_plan_of_all_is_better_than_the_bound_with_overlap(group):
    """600 random problems; every plan of each of them is priced."""
    for seed in range(group * GROUP, (group + 1) * GROUP):
        problem, costs = small_problem(seed, overlaps=True)
        sizes = sorted({size for _, size in costs})
        for limit in (None, sizes[len(sizes) // 3]):
            expected = min(t for t, size in costs if limit is None or size <= limit)
            optimum = Solver(problem).solve(limit)
            assert optimum.bound <= expected * (1 + 1e-9), seed
            assert optimum.best.seconds == pytest.approx(expected, rel=1e-9), seed
            assert limit is None or optimum.best.needs <= limit, seed


@pytest.mark.parametrize("seed", range(6))
def test_overlap_never_makes_a_plan_slower(seed):
    problem, costs = small_problem(seed)
    mesh = dataclasses.replace(problem.setting.mesh, overlaps=True)
    training = problem.setting.training
    for decisions, (seconds, _) in zip(all_decisions(problem), costs, strict=True):
        cost = price_decisions(problem.program, mesh, decisions, training=training)
        assert cost.step_seconds <= seconds * (1 + 1e-12)
        assert cost.step_seconds >= max(cost.compute_seconds, cost.communication_seconds) * (
            1 - 1e-12
        )
        most = sum(talk.seconds for talk in cost.talks if talk.can_overlap)
        assert cost.hidden_seconds <= min(most, cost.compute_seconds) * (1 + 1e-12)


def test_gathers_and_reductions_hide_behind_arithmetic_and_the_plan_knows():
    graph, _ = bert()
    slow = {**SLOW_DEVICES, "bandwidth": (1e8,), "shape": (2, 2)}
    free = make_plan(graph, Mesh(**slow))
    overlapped = make_plan(graph, Mesh(**slow, overlaps=True))
    assert overlapped.cost.hidden_seconds > 0 == free.cost.hidden_seconds
    same = price_decisions_of(free, graph, overlapped.mesh)
    assert overlapped.cost.step_seconds <= same.step_seconds < free.cost.step_seconds
    assert overlapped.gap < 0.005


def price_decisions_of(plan, graph, mesh):
    return price_decisions(program_of(graph), mesh, plan.decisions, training=True)
