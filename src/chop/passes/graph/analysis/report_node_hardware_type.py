"""Table of the hardware component of each node."""

from __future__ import annotations

from typing import Any

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.report_table import draw_table, show

HEADERS = ("Node name", "Fx Node op", "Mase type", "Mase op", "Hardware type")


@graph_pass("report_node_hardware_type_analysis_pass", needs=("common",))
def report_node_hardware_type_analysis_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Show the toolchain of each node; `NA` before hardware metadata is added."""
    rows = [_record(node) for node in graph.fx_graph.nodes]
    show("\n" + draw_table(rows, HEADERS))
    return graph, {"table": rows}


def _record(node: fx.Node) -> dict[str, Any]:
    meta = mase_meta(node)
    toolchain = meta.hardware.get("toolchain", "NA")
    cells = (node.name, node.op, meta.common.mase_type, meta.common.mase_op, toolchain)
    return dict(zip(HEADERS, cells, strict=True))
