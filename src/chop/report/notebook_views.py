"""Graphs and reports as notebooks show them: what the report has, in a cell."""

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
"""Nodes of a graph up to which each is drawn; larger ones are told by their blocks."""
MOST_BYTES = 4_000_000
"""Of a page in a cell: notebooks keep it, and every reader loads it."""


@notebook.view(MaseGraph)
def graph_html(graph: MaseGraph) -> str:
    """Return a graph with its inspector, or a table of its blocks if it is large."""
    counts = Counter(_op_name(graph, node) for node in graph.nodes)
    kinds = notebook.table([{"op": op, "nodes": n} for op, n in counts.most_common()])
    total = len(graph.nodes)
    parameters = sum(p.numel() for p in graph.model.parameters())
    title = notebook.heading(
        type(graph.model).__name__, f"{total:,} nodes", f"{parameters:,} parameters"
    )
    if total > MOST_NODES:
        return notebook.shown(title, _blocks(graph), notebook.details("ops", kinds))
    report = Report(type(graph.model).__name__, {"graph": graph}, provenance={})
    page = report_page(report_records(report))
    if len(page) > MOST_BYTES:
        return notebook.shown(title, _blocks(graph), notebook.details("ops", kinds))
    inside = notebook.frame(page, 620, "the graph and its inspector")
    return notebook.shown(title, inside, notebook.details("ops", kinds))


def _op_name(graph: MaseGraph, node: Any) -> str:
    op = find_op(node, graph.custom_ops)
    return op.name if op is not None else str(node.op)


def _blocks(graph: MaseGraph) -> str:
    """What was folded: a row for each block."""
    nodes = graph_record("graph", graph)["nodes"]
    found: dict[str, dict[str, Any]] = {}
    for node in nodes:
        name = block_of(node)
        row = found.setdefault(name, {"block": name, "nodes": 0, "parameters": 0, "FLOPs": 0})
        row["nodes"] += 1
        row["parameters"] += node.get("parameters", 0)
        row["FLOPs"] += node.get("flops", 0)
    told = notebook.note(
        f"{len(nodes):,} nodes are folded into {len(found)} blocks; chop.report.write_report "
        "draws them all."
    )
    return told + notebook.table(list(found.values()))


@notebook.view(Report)
def report_html(report: Report) -> str:
    """Return a report as a page within a cell."""
    page = report_page(report_records(report))
    title = notebook.heading(report.title, f"{len(page) / 1e6:.2f} MB")
    if len(page) > 4 * MOST_BYTES:
        return notebook.shown(title, notebook.note("Too large for a cell: use write_report."))
    return notebook.shown(title, notebook.frame(page, 720, "the report"))
