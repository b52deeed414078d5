"""Number of nodes of a model with its functions inlined, computed before they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Function = tuple[str, str, str]


def expanded_nodes(proto: Any) -> int | None:
    """Return the number of nodes with functions inlined; None if one calls itself."""
    functions = {(f.domain, f.name, f.overload): list(all_nodes(f.node)) for f in proto.functions}
    counts: dict[Function, int] = {}
    waiting = list(functions)
    open_calls: set[Function] = set()
    while waiting:
        key = waiting[-1]
        missing = [c for c in _calls(functions[key]) if c in functions and c not in counts]
        if key in counts or not missing:
            counts.setdefault(key, _total(functions[key], counts))
            open_calls.discard(waiting.pop())
            continue
        open_calls.add(key)
        if open_calls.intersection(missing):
            return None
        waiting += missing
    return _total(list(all_nodes(proto.graph.node)), counts)


def _calls(nodes: list[Any]) -> list[Function]:
    return [(n.domain, n.op_type, n.overload) for n in nodes]


def _total(nodes: list[Any], counts: dict[Function, int]) -> int:
    return sum(max(1, counts.get(call, 1)) for call in _calls(nodes))


def all_nodes(nodes: Any) -> Iterator[Any]:
    """Yield nodes, and those of nested graphs."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                waiting += graph.node
