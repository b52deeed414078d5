"""Optimisation: graphs that compute the same values with less work.

Every pass takes a graph and gives a new one in which each surviving name keeps its value. A pass
that finds a node superfluous does not hunt down its remains: it points the readers elsewhere,
leaves an alias, and trusts `dead_code_elimination` to sweep. That is why order matters, and why
`optimize` runs the passes in rounds until nothing changes.

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
    """Copy `graph` node by node; where `visit` answers another node, that one takes its place.

    `visit` sees the new graph and the node as it would stand there, its inputs already rewritten.
    The node it answers (already in the new graph) is what readers of the old name get.
    """
    new = graph.successor()
    for node in topological_sort(graph):
        moved = replace(node, inputs=tuple(new.node(i).name for i in node.inputs), graph=new)
        answer = visit(new, moved)
        if answer is None:
            new.add_node(moved)
        elif answer.name != node.name:
            new.alias(node.name, answer.name)
    for name, target in graph.aliases.items():
        new.alias(name, target)
    return new


def dead_code_elimination(graph: Graph, outputs: Names) -> Graph:
    """`graph` without the nodes that `outputs` do not depend on, unread inputs included."""
    wanted = [output if isinstance(output, str) else output.name for output in outputs]
    alive = ancestors(graph, wanted)
    kept = graph.successor()
    for node in graph:
        if node.name in alive:
            kept.add_node(node)
    kept.aliases = {name: graph.aliases[name] for name in wanted if name in graph.aliases}
    return kept


def constant_fold(graph: Graph) -> Graph:
    """Every node whose inputs are all constants becomes a constant, under its own name.

    Runs in topological order, so whole constant expressions collapse in one pass. The constants
    they were made of stay behind, dead. A broadcast is left alone: it costs nothing where it is,
    and folded it would fill memory with copies.
    """

    def visit(new: Graph, node: Node) -> Node | None:
        inputs = [new.nodes[name] for name in node.inputs]
        is_known = bool(inputs) and all(x.value is not None for x in inputs)
        if not is_known or node.op is Op.BROADCAST:
            return None
        with np.errstate(all="ignore"):
            value = KERNELS[node.op](*(x.value for x in inputs), **node.attributes)
        return new.add_const(value, node.name, node.dtype)

    return rewrite(graph, visit)


def common_subexpression_elimination(graph: Graph) -> Graph:
    """Nodes that say the same (op, inputs, attributes, or equal constants) become one node."""
    seen: dict[Any, str] = {}

    def visit(new: Graph, node: Node) -> Node | None:
        if node.op is Op.INPUT:
            return None
        inputs = tuple(sorted(node.inputs)) if node.op in COMMUTATIVE else node.inputs
        attributes = tuple(sorted(node.attributes.items()))
        value = None if node.value is None else (node.value.tobytes(), node.shape, node.dtype)
        first = seen.setdefault((node.op, inputs, attributes, value), node.name)
        return None if first == node.name else new.nodes[first]

    return rewrite(graph, visit)


def simplify_algebra(graph: Graph) -> Graph:
    """Use the laws and the structural rules of `algebra` wherever they apply."""
    return rewrite(graph, simplify)


def fuse_elementwise(graph: Graph, outputs: Names) -> Graph:
    """Runs of elementwise operations of one shape become single FUSED nodes.

    A node joins the group of its readers if they are all in one group and it is no output, so a
    group's values are seen by nobody outside and need never exist as whole arrays.
    """
    groups = _elementwise_groups(graph, {graph.node(output).name for output in outputs})

    def visit(new: Graph, node: Node) -> Node | None:
        members = groups.get(node.name, [])
        return _fuse(new, members, node.name) if len(members) > 1 else None

    return rewrite(graph, visit)


def _elementwise_groups(graph: Graph, outputs: set[str]) -> dict[str, list[Node]]:
    """Members in topological order, by the name of the last one."""
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
# In rounds until nothing changes, then the finish once: fused nodes hide what the rounds look for.
ROUND = (
    "constant_fold",
    "simplify_algebra",
    "common_subexpression_elimination",
    "dead_code_elimination",
)
FINISH = ("fuse_elementwise", "dead_code_elimination")


class PassRecord(NamedTuple):
    """What one run of a pass did to the number of nodes."""

    round: int
    name: str
    before: int
    after: int


@dataclass(frozen=True)
class Optimized:
    """An optimised graph and the log of how it came to be."""

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
    """`graph` with every pass of the round applied until nothing changes, then the finish."""
    wanted = list(outputs)
    records: list[PassRecord] = []
    for number in count(1):
        before = _fingerprint(graph)
        graph = _run(graph, wanted, round_passes, number, records)
        if _fingerprint(graph) == before:
            break
    graph = _run(graph, wanted, finish, number + 1, records)
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
