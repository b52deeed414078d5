"""Stretches of the nodes of a planned graph: those that backward recomputes, and the others."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from chop.distributed.plan import Plan


def stretches(nodes: Sequence[fx.Node], plan: Plan) -> list[tuple[list[fx.Node], bool]]:
    """Return the nodes of a part in stretches, each with whether backward recomputes it."""
    group = {name: number for number, names in enumerate(plan.recomputed) for name in names}
    ends = {group[node.name]: place for place, node in enumerate(nodes) if node.name in group}
    result: list[tuple[list[fx.Node], bool]] = []
    current: int | None = None
    for place, node in enumerate(nodes):
        number = group.get(node.name)
        if current is None and number is not None:
            current = number
            result.append(([], True))
        elif current is None and (not result or result[-1][1]):
            result.append(([], False))
        result[-1][0].append(node)
        current = None if current is not None and ends[current] == place else current
    return result
