"""Where the nodes of a graph lie on the page: all of them, and the blocks they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chop.report.folded_rows import wrapped
from chop.report.page_record import PageRecord
from graph.drawing import Box, Edge, layout

LABEL = 24
"""Characters of a label."""
WORDS = {"placeholder": "input", "get_attr": "parameter"}
"""What people call an op of the IR."""
FEWEST_BLOCKS = 3
"""With fewer blocks than this, or hardly fewer blocks than nodes, blocks tell nothing."""


def place_nodes(record: Mapping[str, Any]) -> PageRecord:
    """Labels, places and routes of all nodes of a graph record."""
    nodes = record["nodes"]
    return place([lines_of(n) for n in nodes], record["edges"])


def place(lines: Sequence[tuple[str, ...]], edges: Iterable[tuple[int, int]]) -> PageRecord:
    """Places of boxes that hold `lines`, joined by `edges`, in whole units.

    `far` numbers the edges that lead from one column to another.
    """
    boxes = [Box(str(i), tuple(filter(None, text))) for i, text in enumerate(lines)]
    links = list(edges)
    found = wrapped(layout(boxes, [Edge(str(s), str(t)) for s, t in links]), links)
    return {
        "width": round(found["width"]),
        "height": round(found["height"]),
        "lines": [list(box.lines) for box in boxes],
        "boxes": [[round(v) for v in box] for box in found["boxes"]],
        "routes": [[round(v) for point in route for v in point] for route in found["routes"]],
        "far": found["far"],
    }


def lines_of(node: Mapping[str, Any]) -> tuple[str, str]:
    """What is written in the box of a node: its label, then op and shape."""
    label, shape = _label(node), _shape(node)
    op = WORDS.get(node["op"], node["op"])
    told = [] if op == label else [shorten(op)]
    return label, " ".join([*told, shape])


def _label(node: Mapping[str, Any]) -> str:
    """The end of a layer's path, or the name of any other node."""
    if node["kind"] != "call_module":
        return shorten(node["name"])
    *_, last = parts = node["target"].split(".")
    both = ".".join(parts[-2:])
    return both if len(both) <= LABEL else shorten(last)


def shorten(text: str, most: int = LABEL) -> str:
    """`text`, its middle left out where it is too long.

    >>> shorten("bert_encoder_layer_0_output", 12)
    'bert_e…utput'
    """
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


def _shape(node: Mapping[str, Any]) -> str:
    results = node.get("results") or ()
    return "×".join(map(str, results[0]["shape"])) if results else ""


# -- blocks ---------------------------------------------------------------------------------------


def place_blocks(record: Mapping[str, Any]) -> PageRecord | None:
    """The graph between blocks, each the sum of its nodes; None where that shows nothing new."""
    names = [block_of(node) for node in record["nodes"]]
    blocks = list(dict.fromkeys(names))
    if not FEWEST_BLOCKS <= len(blocks) <= 0.6 * len(names):
        return None
    number = {name: i for i, name in enumerate(blocks)}
    members = [[i for i, own in enumerate(names) if own == name] for name in blocks]
    pairs = [(number[names[s]], number[names[t]]) for s, t in record["edges"]]
    edges = list(dict.fromkeys((s, t) for s, t in pairs if s != t))
    lines = [(shorten(b, 34), f"{len(m)} nodes") for b, m in zip(blocks, members, strict=True)]
    return {"names": blocks, "members": members, "edges": edges, **place(lines, edges)}


def block_of(node: Mapping[str, Any]) -> str:
    """The block of a node: its path up to the first number, else up to two names.

    >>> block_of({"module": "bert.encoder.layer.3.attention", "kind": "call_function"})
    'bert.encoder.layer.3'
    """
    if node["kind"] in ("placeholder", "output"):
        return f"{node['kind']}s"
    path = node.get("module") or (node["target"] if node["kind"] == "call_module" else "")
    parts = path.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbered[0] + 1] if numbered else parts[:2]) or "top level"
