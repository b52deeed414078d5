"""Records of a sharding plan's pictures."""

import itertools

import pytest

from chop.distributed.pipeline import _step_seconds
from chop.report.page_parts import sharding_record
from chop.report.plan_views import (
    MOST_EVENTS,
    memory_record,
    schedule,
    timeline_record,
    traffic_record,
)

COST = {
    "parameter_bytes": 10,
    "state_bytes": 30,
    "activation_bytes": 5,
    "transient_bytes": 2,
    "talks": [
        {"value": "up", "axis": 0, "collective": "all_gather", "seconds": 0.5, "sent": 8.0},
        {"value": "up", "axis": 0, "collective": "all_gather", "seconds": 0.25, "sent": 4.0},
        {"value": "up", "axis": 1, "collective": "all_reduce", "seconds": 1.0, "sent": 3.0},
    ],
}
PLAN = {"mesh": {"shape": [2, 4], "memory": 64}, "cost": COST, "training": True}


def pipeline(stages: int, micro_batches: int):
    stage = {"first": "a", "last": "b", "seconds": 3.0, "memory_bytes": 9, "in_flight": 1}
    rest = {"step_seconds": 30.0, "bubble": 0.25}
    return {"micro_batches": micro_batches, "stages": [stage] * stages, **rest}


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 7])
@pytest.mark.parametrize("training", [True, False])
def test_equal_stages_take_the_time_of_the_formula(stages, micro_batches, training):
    events = schedule([3.0] * stages, micro_batches, training=training)
    expected = _step_seconds([(3.0, 0.0)] * stages, micro_batches)
    assert max(event.end for event in events) == pytest.approx(expected)
    assert len(events) == stages * micro_batches * (2 if training else 1)


def test_no_stage_works_twice_at_once_and_inputs_come_first():
    events = schedule([3.0, 6.0, 1.5], 5, training=True)
    ends = {(e.stage, e.micro_batch, e.kind): e.end for e in events}
    for stage in range(3):
        own = [e for e in events if e.stage == stage]
        assert all(a.end <= b.start for a, b in itertools.pairwise(own))
    for event in events:
        step = -1 if event.kind == "forward" else 1
        source = (event.stage + step, event.micro_batch, event.kind)
        assert ends.get(source, 0.0) <= event.start


def test_a_stage_holds_as_many_micro_batches_as_the_planner_counts():
    events = schedule([3.0] * 4, 8, training=True)
    for stage in range(4):
        alive = most = 0
        for event in [e for e in events if e.stage == stage]:
            alive += 1 if event.kind == "forward" else -1
            most = max(most, alive)
        assert most == 4 - stage


def test_memory_and_traffic_add_up_to_the_cost():
    memory = memory_record(PLAN)
    assert [part["bytes"] for part in memory["parts"]] == [10, 30, 5, 2] and memory["limit"] == 64
    traffic = traffic_record(PLAN)
    assert [(row["axis"], row["devices"], row["calls"]) for row in traffic] == [
        (0, 2, 2),
        (1, 4, 1),
    ]
    assert sum(row["bytes"] for row in traffic) == 15.0
    assert sum(row["seconds"] for row in traffic) == 1.75


def test_a_long_pipeline_is_drawn_in_part():
    record = timeline_record(pipeline(16, 1000), training=True)
    assert record["shown"] == MOST_EVENTS // 32 and len(record["events"]) <= MOST_EVENTS
    assert timeline_record(None, training=True) is None


def test_a_record_without_costs_has_no_pictures():
    record = sharding_record({"mesh": [1, 2], "plan": {"strategies": {}}})
    assert (record["memory"], record["traffic"], record["timeline"]) == (None, [], None)
