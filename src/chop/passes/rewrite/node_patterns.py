"""A matcher for chains of nodes, and the rows of pattern tables.

A pattern names the op of its sites, the steps that must lead to a site and those that must follow
it. The matcher walks them and records the match, or the reason for none. To add a pattern, add a
`Pattern` with a `rewrite` to the table of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS, find_op
from chop.nn.quantized.functional import is_quantized_function
from chop.passes.rewrite.node_formats import node_quantizers


@dataclass(frozen=True)
class PatternStep:
    """One node of these MASE ops, at most one (`optional`), or any number (`repeated`)."""

    role: str
    ops: tuple[str, ...]
    optional: bool = False
    repeated: bool = False

    def __post_init__(self) -> None:
        OPS.check(self.ops, f"step '{self.role}' of a pattern")

    @property
    def can_skip(self) -> bool:
        """True if the step may be missing."""
        return self.optional or self.repeated


@dataclass
class Match:
    """Nodes of a match, by role."""

    roles: dict[str, list[fx.Node]] = field(default_factory=dict)

    def one(self, role: str) -> fx.Node:
        """Return the node of a role that has exactly one."""
        (node,) = self.roles[role]
        return node

    def maybe(self, role: str) -> fx.Node | None:
        """Return the node of an optional role."""
        return next(iter(self.roles.get(role, [])), None)

    def all(self, role: str) -> list[fx.Node]:
        """Return the nodes of a role, nearest to the site first."""
        return self.roles.get(role, [])

    @property
    def nodes(self) -> list[fx.Node]:
        """Every node of the match."""
        return [node for role in self.roles.values() for node in role]


class NoMatchError(Exception):
    """Reason why a site is no instance of a pattern."""


@dataclass(frozen=True)
class Pattern:
    """`before` is walked from the site to its operands, `after` from the site to its users."""

    name: str
    site: tuple[str, ...]
    rewrite: Callable[[MaseGraph, Match], fx.Node]
    before: tuple[PatternStep, ...] = ()
    after: tuple[PatternStep, ...] = ()
    find: Callable[[MaseGraph, fx.Node], Match] | None = None
    """Return the match at a site, for patterns that are no chain."""

    def __post_init__(self) -> None:
        OPS.check(self.site, f"pattern '{self.name}'")


@dataclass(frozen=True)
class SiteRecord:
    """Result of a pattern at one site."""

    pattern: str
    site: str
    fused: bool
    reason: str
    nodes: tuple[str, ...] = ()


def apply_pattern(graph: MaseGraph, pattern: Pattern) -> list[SiteRecord]:
    """Rewrite every instance of `pattern`; return one record per site, fused or not."""
    records = []
    for node in [n for n in graph.fx_graph.nodes if op_name(graph, n) in pattern.site]:
        if node.graph is not graph.fx_graph or node._erased:
            continue
        name, before = node.name, set(graph.fx_graph.nodes)
        try:
            match = find_match(graph, pattern, node)
            names = tuple(n.name for n in match.nodes)
            new = pattern.rewrite(graph, match)
        except NoMatchError as miss:  # undo a rewrite that stopped half way
            for added in reversed([n for n in graph.fx_graph.nodes if n not in before]):
                graph.fx_graph.erase_node(added)
            records.append(SiteRecord(pattern.name, name, False, str(miss)))
            continue
        records.append(SiteRecord(pattern.name, name, True, f"now '{new.name}'", names))
    return records


def find_match(graph: MaseGraph, pattern: Pattern, site: fx.Node) -> Match:
    """Return the instance of `pattern` at `site`; raise NoMatchError with the reason if none."""
    if pattern.find is not None:
        return pattern.find(graph, site)
    match = Match({"site": [site]})
    _walk_users(graph, pattern.after, site, match)
    _walk_operands(graph, pattern.before, site, match)
    check_unquantised(match.nodes)
    return match


def check_unquantised(nodes: Iterable[fx.Node]) -> None:
    """Raise for quantised nodes, because a fused kernel computes in float only."""
    for node in nodes:
        is_function = node.op == "call_function" and is_quantized_function(node.target)
        if is_function or node_quantizers(node) is not None:
            raise NoMatchError(f"'{node.name}' is quantised, which the fused kernel is not")


def op_name(graph: MaseGraph, node: fx.Node) -> str | None:
    """Return the MASE op of a node; None if the table has none."""
    op = find_op(node, graph.custom_ops)
    return None if op is None else op.name


def _walk_users(
    graph: MaseGraph, steps: tuple[PatternStep, ...], node: fx.Node, match: Match
) -> None:
    for step in steps:
        while True:
            user = _only_user(node)
            if op_name(graph, user) not in step.ops:
                if not step.can_skip:
                    raise NoMatchError(_expected(step, "goes to", graph, user, node))
                break
            match.roles.setdefault(step.role, []).append(user)
            node = user
            if not step.repeated:
                break


def _only_user(node: fx.Node) -> fx.Node:
    if len(node.users) != 1:
        names = ", ".join(f"'{user.name}'" for user in node.users) or "nothing"
        raise NoMatchError(f"'{node.name}' is used by {names}; a fused kernel does not give it")
    return next(iter(node.users))


def _walk_operands(
    graph: MaseGraph, steps: tuple[PatternStep, ...], node: fx.Node, match: Match
) -> None:
    """Walk backwards; at a node with several operands, along the one where the steps match."""
    if not steps:
        return
    step, rest = steps[0], steps[1:]
    miss: NoMatchError | None = None
    for operand in dict.fromkeys(node.all_input_nodes):
        if op_name(graph, operand) not in step.ops:
            continue
        longer = Match({**match.roles, step.role: [*match.all(step.role), operand]})
        try:
            _only_user(operand)
            _walk_operands(graph, steps if step.repeated else rest, operand, longer)
        except NoMatchError as error:
            miss = error
            continue
        match.roles = longer.roles
        return
    if step.can_skip and (miss is None or step.repeated):
        _walk_operands(graph, rest, node, match)
        return
    first = node.all_input_nodes[0] if node.all_input_nodes else node
    raise miss or NoMatchError(_expected(step, "comes from", graph, first, node))


def _expected(step: PatternStep, how: str, graph: MaseGraph, other: fx.Node, node: fx.Node) -> str:
    ops = " or ".join(step.ops)
    op = op_name(graph, other) or other.op
    return f"'{node.name}' {how} '{other.name}' ({op}) where {step.role} ({ops}) is expected"


def erase(match: Match) -> None:
    """Erase the match's nodes that nothing uses any more."""
    order = {node: i for i, node in enumerate(match.nodes[0].graph.nodes)}
    for node in sorted(match.nodes, key=lambda n: order[n], reverse=True):
        if not node.users:
            node.graph.erase_node(node)


def erase_unused(node: fx.Node) -> None:
    """Erase a node that nothing uses, and the nodes that only it used."""
    if node.users or node._erased or node.op == "placeholder":
        return
    operands = node.all_input_nodes
    node.graph.erase_node(node)
    for operand in operands:
        erase_unused(operand)


def number(value: Any) -> float | None:
    """Return `value` as a float if it is a plain number, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None
