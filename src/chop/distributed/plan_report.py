"""Plan as records and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from chop.arguments import an, takes
from chop.distributed.plan import Plan

PLAN_HEADERS = ("value", "strategy", "reads", "layout", "talks")
COST_HEADERS = ("measure", "value", "unit")


def plan_records(plan: Plan, *, only_split: bool = False) -> list[dict[str, str]]:
    """Return one record per value: strategies, operand layouts, layouts, collectives.

    "×" separates mesh axes. `only_split` skips values that are whole on every device.
    """
    talks: dict[str, list[str]] = {}
    for talk in plan.cost.talks:
        talks.setdefault(talk.value, []).append(talk.collective)
    return [
        {
            "value": name,
            "strategy": " × ".join(s.name for s in each),
            "reads": " × ".join(
                " ".join(f"{n}:{layout}" for n, layout in s.operands.items()) for s in each
            ),
            "layout": " × ".join(s.result for s in each),
            "talks": ", ".join(talks.get(name, ())),
        }
        for name, each in plan.strategies.items()
        if not only_split or any(s.is_split for s in each) or name in talks
    ]


def cost_records(plan: Plan) -> list[dict[str, Any]]:
    """Return the cost of a step on each device, one record per measure."""
    cost = plan.cost
    rows = (
        ("step", cost.step_seconds * 1e3, "ms"),
        ("arithmetic", cost.compute_seconds * 1e3, "ms"),
        ("talking", cost.communication_seconds * 1e3, "ms"),
        ("memory of a device", cost.memory_bytes / 1e6, "MB"),
        ("parameters of a device", cost.parameter_bytes / 1e6, "MB"),
        *((name, count, "calls") for name, count in cost.collectives.items()),
    )
    return [dict(zip(COST_HEADERS, row, strict=True)) for row in rows]


def draw(rows: Sequence[Mapping[str, Any]], headers: Sequence[str]) -> str:
    """Return records as a table."""
    return tabulate([[row[h] for h in headers] for row in rows], headers=list(headers))


@takes(plan=an(Plan))
def plan_table(plan: Plan, *, only_split: bool = True) -> str:
    """Return the plan and its cost as text."""
    values = draw(plan_records(plan, only_split=only_split), PLAN_HEADERS)
    return f"{values}\n\n{draw(cost_records(plan), COST_HEADERS)}"
