"""The shapes of every node's operands and results, as a table."""

from __future__ import annotations

from typing import Any

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.meta import ValueMeta, mase_meta
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.report_table import draw_table, show

HEADERS = ("Node name", "Fx Node op", "Mase op", "Input shapes", "Output shapes")


@graph_pass("report_node_shape_analysis_pass", needs=("common",))
def report_node_shape_analysis_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Show the shape of each tensor by its name; `info["table"]` has the records."""
    rows = [_record(node) for node in graph.fx_graph.nodes]
    texts = [{header: str(cell) for header, cell in row.items()} for row in rows]
    show("\n" + draw_table(texts, HEADERS))
    return graph, {"table": rows}


def _record(node: fx.Node) -> dict[str, Any]:
    common = mase_meta(node).common
    cells = (node.name, node.op, common.mase_op, _shapes(common.args), _shapes(common.results))
    return dict(zip(HEADERS, cells, strict=True))


def _shapes(values: dict[str, ValueMeta] | None) -> dict[str, list[int]]:
    return {n: list(v.shape or []) for n, v in (values or {}).items() if v.is_tensor}
