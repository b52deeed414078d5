"""Records of a sharding plan's pictures: memory of a device, bytes per axis, timeline of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MEMORY_PARTS = {
    "parameter_bytes": "parameters",
    "state_bytes": "gradients and optimizer state",
    "activation_bytes": "activations and copies",
    "transient_bytes": "for a moment",
}
"""Key of a plan's cost -> what it is called."""
FORWARD_SHARE = 1 / 3
"""Share of forward in a training step of the cost model: backward is twice forward."""
MOST_EVENTS = 4_000
"""Parts of a timeline that are drawn; micro-batches beyond it are left out."""


class StageEvent(NamedTuple):
    """Forward or backward of one micro-batch on one stage, in seconds."""

    stage: int
    micro_batch: int
    kind: str
    start: float
    end: float


def memory_record(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parts of the memory of one device, and its limit; None for an older record."""
    cost = plan.get("cost", {})
    if not all(key in cost for key in MEMORY_PARTS):
        return None
    parts = [{"part": name, "bytes": cost[key]} for key, name in MEMORY_PARTS.items()]
    return {"parts": parts, "limit": plan.get("mesh", {}).get("memory")}


def traffic_record(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return bytes sent by each device, seconds and calls of every mesh axis and collective."""
    shape = plan.get("mesh", {}).get("shape", ())
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for talk in plan.get("cost", {}).get("talks", ()):
        axis, name = int(talk["axis"]), str(talk["collective"])
        row = rows.setdefault(
            (axis, name),
            {"axis": axis, "devices": shape[axis], "collective": name}
            | {"calls": 0, "bytes": 0.0, "seconds": 0.0},
        )
        row["calls"] += 1
        row["bytes"] += talk.get("sent", 0.0)
        row["seconds"] += talk["seconds"]
    return [rows[key] for key in sorted(rows)]


def timeline_record(pipeline: Mapping[str, Any] | None, *, training: bool) -> dict[str, Any] | None:
    """Return the events of a pipeline's step, with the stages that they belong to."""
    if not pipeline or not pipeline.get("stages"):
        return None
    stages: Sequence[Mapping[str, Any]] = pipeline["stages"]
    count = int(pipeline["micro_batches"])
    shown = max(1, min(count, MOST_EVENTS // (2 * len(stages))))
    seconds = [float(stage["seconds"]) for stage in stages]
    events = schedule(seconds, shown, training=training)
    return {
        "micro_batches": count,
        "shown": shown,
        "seconds": pipeline["step_seconds"],
        "bubble": pipeline["bubble"],
        "events": [list(event) for event in events],
        "stages": [
            {key: stage[key] for key in ("first", "last", "seconds", "memory_bytes", "in_flight")}
            for stage in stages
        ],
    }


def schedule(seconds: Sequence[float], micro_batches: int, *, training: bool) -> list[StageEvent]:
    """Return when every stage runs which micro-batch, in the order 1F1B.

    `seconds`: time of one micro-batch on each stage.

    >>> [event[:3] for event in schedule([3.0, 3.0], 1, training=True)]
    [(0, 0, 'forward'), (1, 0, 'forward'), (1, 0, 'backward'), (0, 0, 'backward')]
    """
    count = len(seconds)
    queues = [_order(stage, count, micro_batches, training=training) for stage in range(count)]
    free = [0.0] * count
    ends: dict[tuple[int, int, str], float] = {}
    events = []
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue and (ready := _ready(ends, stage, *queue[0], count)) is not None:
                number, kind = queue.pop(0)
                share = (
                    (FORWARD_SHARE if kind == "forward" else 1 - FORWARD_SHARE) if training else 1
                )
                start = max(free[stage], ready)
                free[stage] = ends[stage, number, kind] = start + share * seconds[stage]
                events.append(StageEvent(stage, number, kind, start, free[stage]))
    return sorted(events, key=lambda event: (event.start, event.stage))


def _order(stage: int, stages: int, count: int, *, training: bool) -> list[tuple[int, str]]:
    """Return the work of one stage in order: forward first, then one backward for one forward."""
    forward = [(i, "forward") for i in range(count)]
    if not training:
        return forward
    first = min(stages - stage - 1, count)
    order = forward[:first]
    for i, each in enumerate(forward[first:]):
        order += [each, (i, "backward")]
    return order + [(i, "backward") for i in range(count - first, count)]


def _ready(
    ends: Mapping[tuple[int, int, str], float], stage: int, number: int, kind: str, stages: int
) -> float | None:
    """Return when the input of the work is there; None if it is not known yet."""
    source = stage - 1 if kind == "forward" else stage + 1
    return 0.0 if not 0 <= source < stages else ends.get((source, number, kind))
