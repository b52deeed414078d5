"""Boxes and arrows in layers: where they go, and the picture, as SVG or for Graphviz.

>>> svg = to_svg([Box("a", ("a",)), Box("b", ("b",))], [Edge("a", "b")], title="a to b")

It knows nothing of what it draws: `graph` draws its computation graphs with it, `chop` its models,
hardware and reports.
"""

from graph.drawing.dot import to_dot
from graph.drawing.errors import DrawError
from graph.drawing.layout import Box, Edge, Layout, layout
from graph.drawing.svg import to_svg

__all__ = ["Box", "DrawError", "Edge", "Layout", "layout", "to_dot", "to_svg"]
