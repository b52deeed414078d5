"""Optimisation: graphs that compute the same values with less work.

A pass returns a new graph in which each remaining name has the same value. To remove a node, a pass
redirects its readers and adds an alias; `dead_code_elimination` then deletes unread nodes. The
order therefore matters, and `optimize` runs the passes in rounds until nothing changes.

    >>> g = Graph()
    >>> x = g.add_input("x")
    >>> y = g.add_op("add", [x * (g.add_const(2.0) - 1.0), g.add_const(0.0)], name="y")
    >>> print(optimize(g, ["y"]).graph)
    x = input float64[]
    y = x     (alias)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from graph.algebra import COMMUTATIVE, simplify
from graph.errors import GraphError, suggest
from graph.evaluator import KERNELS, ancestors, topological_sort
from graph.ir import Graph, Node, Op, Step
from graph.ops import is_elementwise

Names = Iterable[Node | str]


def rewrite(graph: Graph, visit: Callable[[Graph, Node], Node | None]) -> Graph:
    """Copy `graph` node by node, replacing a node by the one that `visit` returns.

    The arguments of `visit` are the new graph and the node with its inputs rewritten. It returns a
    node of the new graph, which readers of the old name then read, or None.
    """
    new = graph.successor()
    for node in topological_sort(graph):
        moved = replace(node, inputs=tuple(new.node(i).name for i in node.inputs), graph=new)
        replacement = visit(new, moved)
        if replacement is None:
            new.add_node(moved)
        elif replacement.name != node.name:
            new.alias(node.name, replacement.name)
    for name, target in graph.aliases.items():
        new.alias(name, target)
    return new


def dead_code_elimination(graph: Graph, outputs: Names) -> Graph:
    """Remove the nodes that `outputs` do not depend on, unread inputs included."""
    names = [output if isinstance(output, str) else output.name for output in outputs]
    alive = ancestors(graph, names)
    new = graph.successor()
    for node in graph:
        if node.name in alive:
            new.add_node(node)
    new.aliases = {name: graph.aliases[name] for name in names if name in graph.aliases}
    return new


def constant_fold(graph: Graph) -> Graph:
    """Replace every node whose inputs are all constants by a constant of the same name.

    The pass runs in topological order, so it folds whole expressions at once. Their parts stay,
    unread. A broadcast is not folded: that would fill memory with copies.
    """

    def visit(new: Graph, node: Node) -> Node | None:
        inputs = [new.nodes[name] for name in node.inputs]
        is_constant = bool(inputs) and all(x.value is not None for x in inputs)
        if not is_constant or node.op is Op.BROADCAST:
            return None
        with np.errstate(all="ignore"):
            value = KERNELS[node.op](*(x.value for x in inputs), **node.attributes)
        return new.add_const(value, node.name, node.dtype)

    return rewrite(graph, visit)


def common_subexpression_elimination(graph: Graph) -> Graph:
    """Merge nodes with equal op, inputs and attributes, and equal constants."""
    first_names: dict[Any, str] = {}

    def visit(new: Graph, node: Node) -> Node | None:
        if node.op is Op.INPUT:
            return None
        inputs = tuple(sorted(node.inputs)) if node.op in COMMUTATIVE else node.inputs
        attributes = tuple(sorted(node.attributes.items()))
        value = None if node.value is None else (node.value.tobytes(), node.shape, node.dtype)
        first = first_names.setdefault((node.op, inputs, attributes, value), node.name)
        return None if first == node.name else new.nodes[first]

    return rewrite(graph, visit)


def simplify_algebra(graph: Graph) -> Graph:
    """Apply the laws and the structural rules of `algebra`."""
    return rewrite(graph, simplify)


def fuse_elementwise(graph: Graph, outputs: Names) -> Graph:
    """Merge chains of elementwise operations of one shape into single FUSED nodes.

    A node joins the group of its readers if all are in one group and it is no output. Values inside
    a group then have no other readers, and need not exist as whole arrays.
    """
    groups = _elementwise_groups(graph, {graph.node(output).name for output in outputs})

    def visit(new: Graph, node: Node) -> Node | None:
        members = groups.get(node.name, [])
        return _fuse(new, members, node.name) if len(members) > 1 else None

    return rewrite(graph, visit)


def _elementwise_groups(graph: Graph, outputs: set[str]) -> dict[str, list[Node]]:
    """Return the members of each group in topological order, by the name of the last."""
    users = graph.users()
    order = [node for node in topological_sort(graph) if is_elementwise(node.op)]
    last: dict[str, str] = {}
    for node in reversed(order):
        readers = {last.get(user) for user in users[node.name]}
        reader = readers.pop() if len(readers) == 1 and node.name not in outputs else None
        joins = reader is not None and graph.nodes[reader].shape == node.shape
        last[node.name] = reader if joins and reader is not None else node.name
    groups: dict[str, list[Node]] = {}
    for node in order:
        groups.setdefault(last[node.name], []).append(node)
    return groups


def _fuse(new: Graph, members: Sequence[Node], name: str) -> Node:
    inside = {node.name for node in members}
    outside = dict.fromkeys(i for node in members for i in node.inputs if i not in inside)
    number = {i: at for at, i in enumerate([*outside, *(node.name for node in members)])}
    steps = tuple(Step(node.op, tuple(number[i] for i in node.inputs)) for node in members)
    return new.add_op(Op.FUSED, list(outside), name, steps=steps)


Pass = Callable[[Graph, Sequence[Node | str]], Graph]
PASSES: Mapping[str, Pass] = {
    "constant_fold": lambda graph, outputs: constant_fold(graph),
    "simplify_algebra": lambda graph, outputs: simplify_algebra(graph),
    "common_subexpression_elimination": lambda graph, _: common_subexpression_elimination(graph),
    "dead_code_elimination": dead_code_elimination,
    "fuse_elementwise": fuse_elementwise,
}
# Rounds repeat until nothing changes; the finish runs once, because rounds cannot read fused nodes.
FINISH = ("fuse_elementwise", "dead_code_elimination")
ROUND = tuple(name for name in PASSES if name != "fuse_elementwise")


class PassRecord(NamedTuple):
    """Number of nodes before and after a run of a pass."""

    round: int
    name: str
    before: int
    after: int


@dataclass(frozen=True)
class Optimized:
    """An optimised graph and the log of its passes."""

    graph: Graph
    records: tuple[PassRecord, ...]

    def __str__(self) -> str:
        head = f"{'round':>5}  {'pass':<32} nodes before -> after"
        rows = [f"{r.round:>5}  {r.name:<32} {r.before:>12} -> {r.after}" for r in self.records]
        return "\n".join([head, *rows])


def optimize(
    graph: Graph,
    outputs: Names,
    round_passes: Sequence[str] = ROUND,
    finish: Sequence[str] = FINISH,
) -> Optimized:
    """Apply the passes of a round until nothing changes, then the finish."""
    names = list(outputs)
    records: list[PassRecord] = []
    for number in count(1):
        before = _fingerprint(graph)
        graph = _run(graph, names, round_passes, number, records)
        if _fingerprint(graph) == before:
            break
    graph = _run(graph, names, finish, number + 1, records)
    return Optimized(graph, tuple(records))


def _run(
    graph: Graph,
    outputs: Sequence[Node | str],
    names: Sequence[str],
    number: int,
    records: list[PassRecord],
) -> Graph:
    for name in names:
        if name not in PASSES:
            raise GraphError(f"unknown pass '{name}'. {suggest(name, PASSES)}")
        before, graph = len(graph), PASSES[name](graph, outputs)
        records.append(PassRecord(number, name, before, len(graph)))
    return graph


def _fingerprint(graph: Graph) -> str:
    return repr([(n.name, n.op, n.inputs, n.attributes) for n in graph]) + repr(graph.aliases)
