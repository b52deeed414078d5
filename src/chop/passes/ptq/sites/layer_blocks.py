"""Blocks of a graph that one value connects, found from data flow and not from names.

A cut is a place in the order of nodes where one value alone is still to be read that is an operand
of a quantised layer or depends on one: in a transformer between attention and feed-forward, where
the residual stream alone goes on; in a chain between any two layers.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from chop.ir.dims import FACTS
from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op
from chop.nn.quantized.layer import QuantizedModule


@dataclass(frozen=True)
class Block:
    """Nodes from `start` up to but not with `end`, the layers in it, and what it gives others."""

    start: fx.Node
    end: fx.Node
    layers: tuple[tuple[fx.Node, QuantizedModule], ...]
    results: tuple[fx.Node, ...]


def blocks(
    graph: MaseGraph, layers: Sequence[tuple[fx.Node, QuantizedModule]], least: int
) -> Iterator[Block]:
    """The graph from its first of `layers` to its last, in blocks with at least so many of them."""
    nodes = list(graph.fx_graph.nodes)
    known = dict(layers)
    operands = {source for node in known for source in node.all_input_nodes}
    changed = _changed(nodes, operands.union(known))
    last = _last_readers(nodes)
    alive: list[fx.Node] = []
    inside: list[tuple[fx.Node, QuantizedModule]] = []
    start = 0
    for i, node in enumerate(nodes[:-1]):
        inside += [(node, known[node])] if node in known else []
        alive = [n for n in (*alive, node) if n in changed and last[n] > i]
        is_end = nodes[i + 1].op == "output" or (len(alive) == 1 and len(inside) >= least)
        if inside and is_end:
            yield Block(nodes[start], nodes[i + 1], tuple(inside), tuple(alive))
            start, inside = i + 1, []


def _last_readers(nodes: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """The place of the last node that reads each value; -1 where nobody does."""
    place = {node: i for i, node in enumerate(nodes)}
    return {node: max((place[user] for user in node.users), default=-1) for node in nodes}


def _changed(nodes: Sequence[fx.Node], first: Container[fx.Node]) -> set[fx.Node]:
    """Those of `first` and what depends on them; sizes and types do not."""
    found: set[fx.Node] = set()
    for node in nodes:
        op = None if node.op == "output" else find_op(node)
        reads_facts = op is not None and op.dims == FACTS
        if node in first or (not reads_facts and any(n in found for n in node.all_input_nodes)):
            found.add(node)
    return found
