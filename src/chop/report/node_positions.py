"""Positions of the nodes of a graph on the page, and of the blocks that contain them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chop.report.folded_rows import wrapped
from chop.report.page_parts import PageRecord
from graph.drawing import Box, Edge, layout

LABEL = 24
"""Longest label, in characters."""
WORDS = {"placeholder": "input", "get_attr": "parameter"}
"""Op of the IR -> its label."""
FEWEST_BLOCKS = 3
"""Smallest number of blocks that are drawn."""
MOST_BLOCKS = 0.6
"""Largest number of blocks that are drawn, as a share of the nodes."""


def place_nodes(record: Mapping[str, Any]) -> PageRecord:
    """Return labels, places and routes of all nodes of a graph record."""
    return place([lines_of(n) for n in record["nodes"]], record["edges"])


def place(lines: Sequence[tuple[str, ...]], edges: Iterable[tuple[int, int]]) -> PageRecord:
    """Return the layout of boxes with the text `lines` and the edges `edges`, in whole units.

    `far` lists the edges between two columns.
    """
    boxes = [Box(str(i), tuple(filter(None, text))) for i, text in enumerate(lines)]
    links = list(edges)
    columns = wrapped(layout(boxes, [Edge(str(s), str(t)) for s, t in links]), links)
    return {
        "width": round(columns["width"]),
        "height": round(columns["height"]),
        "lines": [list(box.lines) for box in boxes],
        "boxes": [[round(v) for v in box] for box in columns["boxes"]],
        "routes": [[round(v) for point in route for v in point] for route in columns["routes"]],
        "far": columns["far"],
    }


def lines_of(node: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of a node's box: its label, then op and shape."""
    label, results = _label(node), node.get("results") or ()
    shape = "×".join(map(str, results[0]["shape"])) if results else ""
    op = WORDS.get(node["op"], node["op"])
    return label, shape if op == label else f"{shorten(op)} {shape}"


def _label(node: Mapping[str, Any]) -> str:
    """Return the end of a layer's path, or the name of another node."""
    if node["kind"] != "call_module":
        return shorten(node["name"])
    *_, last = parts = node["target"].split(".")
    both = ".".join(parts[-2:])
    return both if len(both) <= LABEL else shorten(last)


def shorten(text: str, most: int = LABEL) -> str:
    """Return `text`, without its middle if it is too long.

    >>> shorten("bert_encoder_layer_0_output", 12)
    'bert_e…utput'
    """
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


def place_blocks(record: Mapping[str, Any]) -> PageRecord | None:
    """Return the graph of the blocks, or None if there are too few or too many blocks."""
    names = [block_of(node) for node in record["nodes"]]
    blocks = list(dict.fromkeys(names))
    if not FEWEST_BLOCKS <= len(blocks) <= MOST_BLOCKS * len(names):
        return None
    number = {name: i for i, name in enumerate(blocks)}
    members = [[i for i, own in enumerate(names) if own == name] for name in blocks]
    pairs = [(number[names[s]], number[names[t]]) for s, t in record["edges"]]
    edges = list(dict.fromkeys((s, t) for s, t in pairs if s != t))
    lines = [(shorten(b, 34), f"{len(m)} nodes") for b, m in zip(blocks, members, strict=True)]
    return {"names": blocks, "members": members, "edges": edges, **place(lines, edges)}


def block_of(node: Mapping[str, Any]) -> str:
    """Return the block of a node: its path up to the first number, or else its first two names.

    >>> block_of({"module": "bert.encoder.layer.3.attention", "kind": "call_function"})
    'bert.encoder.layer.3'
    """
    if node["kind"] in ("placeholder", "output"):
        return f"{node['kind']}s"
    path = node.get("module") or (node["target"] if node["kind"] == "call_module" else "")
    parts = path.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbered[0] + 1] if numbered else parts[:2]) or "top level"
