"""Drawing of a MaseGraph."""

from __future__ import annotations

from pathlib import Path

from torch import fx

from chop.errors import GraphError
from chop.files import make_folder
from chop.ir.meta import MaseMetadata
from chop.ir.ops import MASE_TYPES, find_op
from graph.drawing import Box, Edge, to_dot, to_svg

COLOURS = dict(
    zip(
        MASE_TYPES,
        ("#cfe2ff", "#d1e7dd", "#ffe5d0", "#f1f3f5", "#fff3cd", "#e2d9f3", "#f8d7da"),
        strict=True,
    )
)
"""MASE type -> colour."""
WRITERS = {".svg": to_svg, ".dot": to_dot, ".gv": to_dot}


def draw(graph: fx.Graph, path: str | Path, title: str) -> Path:
    """Write the graph to `path`, as SVG or DOT by its suffix; SVG without a suffix."""
    file = Path(path)
    if file.suffix not in WRITERS:
        if file.suffix:
            allowed = ", ".join(WRITERS)
            raise GraphError(f"draw: '{file.suffix}' is not a known format. Allowed: {allowed}.")
        file = file.with_name(file.name + ".svg")
    boxes = [_box(node) for node in graph.nodes]
    edges = [Edge(i.name, node.name) for node in graph.nodes for i in node.all_input_nodes]
    make_folder(file.parent)
    file.write_text(WRITERS[file.suffix](boxes, edges, title))
    return file


def _box(node: fx.Node) -> Box:
    op = find_op(node)
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
    label = "" if str(target) in (node.name, node.op) else str(target)
    lines = tuple(filter(None, (node.name, label, _shape(node))))
    fill = COLOURS[op.type] if op else COLOURS["implicit_func"]
    return Box(
        node.name,
        lines,
        fill,
        f"{node.op}: {target} {node.args} {node.kwargs}",
    )


def _shape(node: fx.Node) -> str:
    meta = node.meta.get("mase")
    if not isinstance(meta, MaseMetadata) or not meta.common.results:
        return ""
    first = next(iter(meta.common.results.values()))
    if first.shape is None:
        return ""
    return f"{' × '.join(map(str, first.shape))} {first.type or ''}".strip()
