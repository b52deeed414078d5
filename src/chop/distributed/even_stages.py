"""Stages of equal work, for models that the planner of pipelines cannot cut.

The planner cuts where exactly one value is live between two of its segments. Here a model is cut
between any two values where as few as possible are sent, and no parameter is read on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from chop.distributed.program import Program, ProgramValue, program_of
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph


def even_stages(graph: MaseGraph, stages: int) -> list[str]:
    """Return the first value of each stage behind the first, for stages of equal work."""
    program = program_of(graph)
    fetched = {node.name for node in graph.fx_graph.find_nodes(op="get_attr")}
    work = list(accumulate(value.flops() for value in program.values))
    inner = [place for place in range(1, len(work)) if 0 < work[place - 1] < work[-1]]
    places = _places(program, fetched, inner)
    if len(places) < stages - 1:
        raise ConfigError(
            f"pipeline: {stages} stages, but the model can be cut at {len(places)} places only, "
            f"into at most {len(places) + 1} stages."
        )
    chosen: list[int] = []
    for stage in range(1, stages):
        first = places.index(chosen[-1]) + 1 if chosen else 0
        allowed = places[first : len(places) - (stages - 1 - stage)]
        share = work[-1] * stage / stages
        chosen.append(min(allowed, key=lambda place: abs(work[place - 1] - share)))
    return [program.values[place].name for place in chosen]


def _places(program: Program, fetched: set[str], inner: Sequence[int]) -> list[int]:
    """Return the places where the fewest values cross; place i is in front of value i.

    `inner`: the places with work on both sides.
    """
    crossing = _crossing(program, fetched)
    counts = {place: len(names) for place in inner if (names := crossing[place]) is not None}
    fewest = min((count for count in counts.values() if count), default=0)
    places = [place for place, count in counts.items() if count == fewest]
    # of places with the same crossing values, the first: the next stage starts there
    return [p for p in places if fewest and crossing[p] != crossing[p - 1]]


def _crossing(program: Program, fetched: set[str]) -> list[frozenset[str] | None]:
    """Return the values that are sent at each place; None where a parameter is on both sides."""
    values, last = program.values, _last_readers(program.values)
    first: dict[str, int] = {}
    for i, value in enumerate(values):
        for reference in value.references:
            first.setdefault(reference.value, i)
    result: list[frozenset[str] | None] = []
    for place in range(len(values)):
        live = [v for v in values[:place] if last.get(v.name, -1) >= place]
        shared = [v for v in live if v.is_parameter or v.name in fetched]
        if any(first[v.name] < place for v in shared):
            result.append(None)
        else:
            result.append(frozenset(v.name for v in live if v.is_learnt and v not in shared))
    return result


def _last_readers(values: Sequence[ProgramValue]) -> dict[str, int]:
    return {r.value: i for i, value in enumerate(values) for r in value.references}
