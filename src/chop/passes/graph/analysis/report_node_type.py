"""The MASE type and op of every node, as a table."""

from __future__ import annotations

from typing import Any

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.report_table import draw_table, show

HEADERS = ("Node name", "Fx Node op", "Mase type", "Mase op", "Value type")
NO_VALUE_TYPE = ("placeholder", "output")
"""Nodes that compute nothing, so that there is no value to speak of."""


@graph_pass("report_node_type_analysis_pass", needs=("common",))
def report_node_type_analysis_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Show what each node is to torch.fx and to MASE; `info["table"]` has the records."""
    rows = [_record(node) for node in graph.fx_graph.nodes]
    show("\n" + draw_table(rows, HEADERS))
    return graph, {"table": rows}


def _record(node: fx.Node) -> dict[str, Any]:
    common = mase_meta(node).common
    cells = (node.name, node.op, common.mase_type, common.mase_op, _value_type(node))
    return dict(zip(HEADERS, cells, strict=True))


def _value_type(node: fx.Node) -> str:
    results = mase_meta(node).common.results or {}
    if node.op in NO_VALUE_TYPE or "data_out_0" not in results:
        return "NA"
    return str(results["data_out_0"].type)
