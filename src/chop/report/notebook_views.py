"""Notebook views of graphs and reports."""

from __future__ import annotations

from collections import Counter
from typing import Any

from chop import notebook
from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op
from chop.report.graph_records import graph_record
from chop.report.html import report_page
from chop.report.node_positions import block_of
from chop.report.page_records import Report, report_records

MOST_NODES = 1200
"""Largest number of nodes that are drawn one by one; above it a table of blocks is shown."""
MOST_BYTES = 4_000_000
"""Largest page in a cell, in bytes: the notebook stores it and every reader loads it."""


@notebook.view(MaseGraph)
def graph_html(graph: MaseGraph) -> str:
    """Return a graph with its inspector, or a table of its blocks if it is large."""
    ops = [find_op(node, graph.custom_ops) for node in graph.nodes]
    counts = Counter(op.name if op else node.op for op, node in zip(ops, graph.nodes, strict=True))
    kinds = notebook.table([{"op": op, "nodes": n} for op, n in counts.most_common()])
    name, parameters = type(graph.model).__name__, sum(p.numel() for p in graph.model.parameters())
    title = notebook.heading(name, f"{len(ops):,} nodes", f"{parameters:,} parameters")
    page = ""
    if len(ops) <= MOST_NODES:
        page = report_page(report_records(Report(name, {"graph": graph}, provenance={})))
    is_drawn = page and len(page) <= MOST_BYTES
    inside = (
        notebook.frame(page, 620, "the graph and its inspector") if is_drawn else _blocks(graph)
    )
    return notebook.shown(title, inside, notebook.details("ops", kinds))


def _blocks(graph: MaseGraph) -> str:
    """Return a table with a row for each block."""
    nodes = graph_record("graph", graph)["nodes"]
    rows: dict[str, dict[str, Any]] = {}
    for node in nodes:
        name = block_of(node)
        row = rows.setdefault(name, {"block": name, "nodes": 0, "parameters": 0, "FLOPs": 0})
        row["nodes"] += 1
        row["parameters"] += node.get("parameters", 0)
        row["FLOPs"] += node.get("flops", 0)
    note = notebook.note(
        f"{len(nodes):,} nodes are folded into {len(rows)} blocks; chop.report.write_report "
        "draws them all."
    )
    return note + notebook.table(list(rows.values()))


@notebook.view(Report)
def report_html(report: Report) -> str:
    """Return a report as a page within a cell."""
    page = report_page(report_records(report))
    title = notebook.heading(report.title, f"{len(page) / 1e6:.2f} MB")
    if len(page) > 4 * MOST_BYTES:
        return notebook.shown(title, notebook.note("Too large for a cell: use write_report."))
    return notebook.shown(title, notebook.frame(page, 720, "the report"))
