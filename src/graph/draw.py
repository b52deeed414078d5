"""Drawings of computation graphs: a box per node, an arrow per value that it reads."""

from __future__ import annotations

from graph.drawing import Box, Edge, to_dot, to_svg
from graph.ir import Graph, Op, settings_of

__all__ = ["Box", "Edge", "picture", "to_dot", "to_svg"]

FILLS = {Op.INPUT: "#dbeafe", Op.CONST: "#fef3c7", Op.FUSED: "#dcfce7"}
"""Colours of special ops."""


def picture(graph: Graph) -> tuple[list[Box], list[Edge]]:
    """Return the boxes and arrows of `graph`, for `to_svg` and `to_dot`."""
    boxes = [
        Box(
            node.name,
            (node.name, node.expression.split("(")[0], node.type),
            FILLS.get(node.op, "#ffffff"),
            f"{node.name} = {node.expression} {node.type} {settings_of(node)}".strip(),
        )
        for node in graph
    ]
    return boxes, [Edge(name, node.name) for node in graph for name in node.inputs]
