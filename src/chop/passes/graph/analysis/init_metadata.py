"""Give every node an empty metadata tree."""

from __future__ import annotations

from chop.ir.graph import MaseGraph
from chop.ir.meta import MaseMetadata
from chop.passes.base import NoArgs, PassResult, graph_pass


@graph_pass("init_metadata_analysis_pass")
def init_metadata_analysis_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Put a fresh `node.meta["mase"]` on every node; what an earlier run wrote there is gone."""
    for node in graph.fx_graph.nodes:
        node.meta["mase"] = MaseMetadata()
    return graph, {}
