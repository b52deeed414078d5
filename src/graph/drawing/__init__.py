"""Drawings of boxes and arrows in layers, as SVG or for Graphviz.

>>> svg = to_svg([Box("a", ("a",)), Box("b", ("b",))], [Edge("a", "b")], title="a to b")

It is independent of what it draws: `graph` uses it for computation graphs, `chop` for models,
hardware and reports.
"""

from graph.drawing.dot import to_dot
from graph.drawing.errors import DrawError
from graph.drawing.layout import Box, Edge, Layout, layout
from graph.drawing.svg import to_svg

__all__ = ["Box", "DrawError", "Edge", "Layout", "layout", "to_dot", "to_svg"]
