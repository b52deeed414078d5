"""The graph as torch.fx sees it, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import PassResult, graph_pass
from chop.passes.report_table import draw_table, show

HEADERS = ("opcode", "name", "target", "args", "kwargs")
TITLE = "Graph Analysis Report\n\n===================== Graph Summary =====================\n\n"


@dataclass(frozen=True)
class ReportGraphArgs:
    """`file_name`: also write the report there."""

    file_name: Path | None = None


@graph_pass("report_graph_analysis_pass", ReportGraphArgs)
def report_graph_analysis_pass(graph: MaseGraph, args: ReportGraphArgs) -> PassResult:
    """Show opcode, name, target, args and kwargs of every node; `info["table"]` has the records."""
    rows = graph_records(graph)
    show(TITLE + draw_table(rows, HEADERS, disable_numparse=True), args.file_name)
    return graph, {"table": rows}


def graph_records(graph: MaseGraph) -> list[dict[str, Any]]:
    """One record a node, as text."""
    return [
        dict(
            zip(HEADERS, map(str, (n.op, n.name, n.target, n.args, n.kwargs)), strict=True),
        )
        for n in graph.fx_graph.nodes
    ]
