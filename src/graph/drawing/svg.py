"""Directed graphs in layers, as one SVG document.

>>> svg = to_svg([Box("a", ("a",)), Box("b", ("b",))], [Edge("a", "b")], title="a to b")
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from graph.drawing.colour import is_dark
from graph.drawing.layout import (
    LINE,
    MARGIN,
    PADDING_Y,
    ROW_GAP_MOST,
    Box,
    Edge,
    Placed,
    Point,
    columns,
    layout,
)

TITLE_HEIGHT = 30.0
STRAIGHT = 4.0  # a sideways step smaller than this is drawn as a line, not as a curve
STYLE = """
.layered-graph { font: 12px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace }
.layered-graph .ground { fill: #fcfcfd }
.layered-graph .box rect { stroke: #64748b; stroke-width: 1.1 }
.layered-graph .head { font-weight: bold }
.layered-graph a:hover .head, .layered-graph a:focus-visible .head { text-decoration: underline }
.layered-graph a:focus-visible rect { stroke-width: 2.4 }
.layered-graph .edge { fill: none; stroke: #64748b; stroke-width: 1.3 }
.layered-graph .far { stroke-dasharray: 5 4; stroke-opacity: .55 }
.layered-graph .arrow { fill: #64748b }
.layered-graph .label, .layered-graph .heading { fill: #334155; text-anchor: middle }
.layered-graph .label { font-size: 10px }
.layered-graph .heading { font-size: 15px; font-weight: bold }
@media (prefers-color-scheme: dark) {
  .layered-graph .ground { fill: #14171d }
  .layered-graph .edge, .layered-graph .box rect { stroke: #94a3b8 }
  .layered-graph .arrow { fill: #94a3b8 }
  .layered-graph .label, .layered-graph .heading { fill: #dbe3ee }
}
"""
ARROW_HEAD = (
    '<defs><marker id="layered-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
    '<path class="arrow" d="M0 0.6 8 4 0 7.4 2 4z"/></marker></defs>'
)


def to_svg(boxes: Sequence[Box], edges: Sequence[Edge], title: str = "") -> str:
    """Return the drawing as one self-contained SVG document, for light and dark viewers."""
    plan = layout(boxes, edges)
    lift = TITLE_HEIGHT if title else 0.0
    width = max(plan.width, columns(title) * 9.5 + 2 * MARGIN)
    height = plan.height + lift
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="layered-graph" role="img" '
            f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
            f"<style>{STYLE}</style>",
            ARROW_HEAD,
            '<rect class="ground" width="100%" height="100%"/>',
            *_heading(title, width),
            f'<g transform="translate({(width - plan.width) / 2:.1f} {lift:.1f})">',
            *map(_svg_edge, edges, plan.routes),
            *map(_svg_box, boxes, plan.boxes),
            *map(_svg_label, edges, plan.routes),
            "</g>",
            "</svg>",
            "",
        ]
    ).replace("\n\n", "\n")


def _heading(title: str, width: float) -> list[str]:
    if not title:
        return []
    text = escape(title)
    return [
        f"<title>{text}</title>",
        f'<text class="heading" x="{width / 2:.1f}" y="30">{text}</text>',
    ]


def _svg_edge(edge: Edge, route: Sequence[Point]) -> str:
    is_far = len(route) == 4 and route[2][1] - route[1][1] > ROW_GAP_MOST + 1
    source, target = escape(edge.source), escape(edge.target)
    return (
        f'<path class="edge{" far" if is_far else ""}" d="{_path(route)}" '
        f'data-source="{source}" data-target="{target}" marker-end="url(#layered-arrow)">'
        f"<title>{source} → {target}</title></path>"
    )


def _path(route: Sequence[Point]) -> str:
    """Return a path that is straight in rows and an S-curve between them."""
    (x, y), *rest = route
    parts = [f"M{x:.1f} {y:.1f}"]
    for step, (x_next, y_next) in enumerate(rest):
        is_inside_row = step % 2 == 0
        if is_inside_row or abs(x_next - x) < STRAIGHT:
            if (
                abs(x_next - x) + abs(y_next - y) >= 0.1
            ):  # a point of no length would turn the arrow head
                parts.append(f"L{x_next:.1f} {y_next:.1f}")
        else:
            middle = (y + y_next) / 2
            parts.append(
                f"C{x:.1f} {middle:.1f} {x_next:.1f} {middle:.1f} {x_next:.1f} {y_next:.1f}"
            )
        x, y = x_next, y_next
    return "".join(parts)


def _svg_box(box: Box, placed: Placed) -> str:
    left, top = placed.x - placed.width / 2, placed.y - placed.height / 2
    ink = "#f8fafc" if is_dark(box.fill) else "#0f172a"
    lines = "".join(
        f'<text class="{"line" if number else "head"}" x="{placed.x:.1f}" '
        f'y="{top + PADDING_Y + LINE * (number + 0.75):.1f}" '
        f'text-anchor="middle" fill="{ink}">{escape(line)}</text>'
        for number, line in enumerate(box.lines)
    )
    drawn = (
        f'<g class="box" id="box-{quote(box.name, safe="._-")}" data-name="{escape(box.name)}">'
        f"<title>{escape(box.tooltip or box.name)}</title>"
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{placed.width:.1f}" '
        f'height="{placed.height:.1f}" rx="6" fill="{escape(box.fill)}"/>{lines}</g>'
    )
    return f'<a href="{escape(quote(box.link, safe="/._-"))}">{drawn}</a>' if box.link else drawn


def _svg_label(edge: Edge, route: Sequence[Point]) -> str:
    if not edge.label:
        return ""
    (x, y), (x_next, y_next) = route[1], route[2]
    x, y, width = (x + x_next) / 2, (y + y_next) / 2, columns(edge.label) * 6.1 + 6
    return (
        f'<rect class="ground" x="{x - width / 2:.1f}" y="{y - 7:.1f}" width="{width:.1f}" '
        f'height="13" rx="3"/><text class="label" x="{x:.1f}" y="{y + 3:.1f}">'
        f"{escape(edge.label)}</text>"
    )
