"""Directed graphs in the language of Graphviz."""

from __future__ import annotations

from collections.abc import Sequence

from graph.drawing.colour import is_dark
from graph.drawing.layout import Box, Edge, check_links


def to_dot(boxes: Sequence[Box], edges: Sequence[Edge], title: str = "") -> str:
    """Return the drawing for Graphviz, which computes its own layout."""
    check_links(boxes, edges)
    nodes = [
        f"  {_dot(box.name)} [label={_dot(chr(10).join(box.lines))}, fillcolor={_dot(box.fill)}, "
        f"fontcolor={_dot('#f8fafc' if is_dark(box.fill) else '#0f172a')}, "
        f"tooltip={_dot(box.tooltip or box.name)}];"
        for box in boxes
    ]
    arrows = [
        f"  {_dot(edge.source)} -> {_dot(edge.target)}"
        + (f" [label={_dot(edge.label)}];" if edge.label else ";")
        for edge in edges
    ]
    return "\n".join(
        [
            f"digraph {_dot(title or 'graph')} {{",
            *([f"  label={_dot(title)}; labelloc=t;"] if title else []),
            '  node [shape=box, style="rounded,filled", fontname="monospace"];',
            *nodes,
            *arrows,
            "}",
            "",
        ]
    )


def _dot(text: str) -> str:
    """Return a DOT string; quotes, backslashes and newlines are escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
