"""Pipelines: optimal cut points, stage memory, and the time of a step."""

import itertools

import pytest
from distributed.models import SLOW_DEVICES, bert, mlp

from chop.distributed.domains import Setting
from chop.distributed.mesh import Mesh
from chop.distributed.pipeline import _Cutter, _step_seconds, make_pipeline
from chop.distributed.plan import make_plan
from chop.distributed.problem import PlanningProblem
from chop.distributed.program import program_of
from chop.errors import ConfigError


def mesh_of(**settings):
    return Mesh(**{"shape": (2,), **SLOW_DEVICES, **settings})


def all_cuts(cutter: _Cutter):
    """Yield the step time of every way to cut that fits."""
    inner = cutter.points[1:-1]
    for chosen in itertools.combinations(inner, cutter.stages - 1):
        seconds = step_seconds(cutter, [0, *chosen, cutter.points[-1]])
        if seconds is not None:
            yield seconds


def step_seconds(cutter: _Cutter, cuts):
    """Return the step time of these cuts; None if a stage does not fit."""
    pairs = enumerate(itertools.pairwise(cuts))
    costs = [cutter.cost(i, j, cutter.in_flight(stage)) for stage, (i, j) in pairs]
    if None in costs:
        return None
    return _step_seconds([(cost.seconds, cost.once) for cost in costs], cutter.micro_batches)


@pytest.mark.share(2)
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("micro_batches", [1, 8])
@pytest.mark.parametrize("share", [None, 0.7])
def test_no_other_cut_is_faster(stages, micro_batches, share):
    program = program_of(bert(layers=4)[0])
    is_limited = share is not None
    problem = PlanningProblem(program, Setting(mesh_of(), True, is_limited, is_limited))
    free = _Cutter(problem, stages, micro_batches, None)
    memory = None
    if share is not None:
        sizes = [s.memory_bytes for s in free.pipeline(free.best_cuts()).stages]
        memory = int(max(sizes) * share)
    cutter = _Cutter(problem, stages, micro_batches, memory)
    cuts = cutter.best_cuts()
    least = min(all_cuts(cutter))
    assert step_seconds(cutter, cuts) == pytest.approx(least, rel=1e-12)
    pipeline = cutter.pipeline(cuts)  # with every stage solved again at prices of its own
    assert pipeline.step_seconds <= least * (1 + 1e-12)


def test_one_stage_and_one_micro_batch_is_the_plan_without_a_pipeline():
    graph, _ = bert()
    pipeline = make_pipeline(graph, mesh_of(), stages=1)
    assert pipeline.step_seconds == pytest.approx(make_plan(graph, mesh_of()).cost.step_seconds)
    assert pipeline.bubble == pytest.approx(0.0, abs=1e-12)


@pytest.mark.slow
def test_every_stage_is_within_its_memory_and_earlier_stages_store_more():
    graph, _ = bert(layers=4)
    free = make_pipeline(graph, mesh_of(), stages=3, micro_batches=4)
    limit = max(stage.memory_bytes for stage in free.stages) * 3 // 4
    tight = make_pipeline(graph, mesh_of(memory=limit), stages=3, micro_batches=4)
    assert all(stage.memory_bytes <= limit for stage in tight.stages)
    assert tight.step_seconds >= free.step_seconds
    assert [stage.in_flight for stage in tight.stages] == [3, 2, 1]
    assert sum(stage.values for stage in tight.stages) == len(program_of(graph).values)


def test_more_micro_batches_make_the_bubble_smaller():
    graph, _ = bert(layers=4)
    bubbles = [
        make_pipeline(graph, mesh_of(), stages=2, micro_batches=m).bubble for m in (1, 4, 16, 64)
    ]
    assert bubbles == sorted(bubbles, reverse=True)
    assert bubbles[0] > 0.3 > 0.05 > bubbles[-1]


def test_a_step_fills_the_pipeline_and_waits_for_the_slowest_stage():
    assert _step_seconds([(1.0, 0.5), (2.0, 0.0)], micro_batches=4) == 3.0 + 6.0
    assert _step_seconds([(1.0, 9.0), (2.0, 0.0)], micro_batches=4) == 3.0 + 12.0


def test_a_pipeline_is_plain_data():
    record = make_pipeline(bert(layers=4)[0], mesh_of(), stages=2, micro_batches=2).record()
    assert [set(record), len(record["stages"])] == [
        {"micro_batches", "step_seconds", "bubble", "gap", "stages"},
        2,
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stages": 0}, "stages and micro_batches must be 1 or more, got 0 and 1"),
        ({"stages": 2, "micro_batches": -1}, "must be 1 or more, got 2 and -1"),
        ({"stages": 9}, r"pipeline: 9 stages, but the model can be cut at \d places only"),
    ],
)
def test_a_wrong_number_is_named(settings, words):
    with pytest.raises(ConfigError, match=words):
        make_pipeline(mlp()[0], mesh_of(), **settings)


def test_too_little_memory_for_any_cut_is_an_error():
    words = r"mesh memory 1000 bytes: no cut into 2 stages fits with 1 micro-batches"
    with pytest.raises(ConfigError, match=words):
        make_pipeline(bert(layers=4)[0], mesh_of(memory=1000), stages=2)
