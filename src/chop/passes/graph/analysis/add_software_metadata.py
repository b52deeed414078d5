"""Make room for facts about the model run as software."""

from __future__ import annotations

from typing import Any

from chop.ir.graph import MaseGraph
from chop.ir.meta import ValueMeta, mase_meta
from chop.passes.base import NoArgs, PassResult, graph_pass


@graph_pass("add_software_metadata_analysis_pass", needs=("common",))
def add_software_metadata_analysis_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Give each tensor operand and result an entry in `software` with an empty `stat`.

    Needs common metadata. Statistics gathered before are kept.
    """
    for node in graph.fx_graph.nodes:
        meta = mase_meta(node)
        meta.software.args = _entries(meta.common.args, meta.software.args)
        meta.software.results = _entries(meta.common.results, meta.software.results)
    return graph, {}


def _entries(
    values: dict[str, ValueMeta] | None, before: dict[str, dict[str, Any]] | None
) -> dict[str, dict[str, Any]]:
    tensors = [name for name, value in (values or {}).items() if value.is_tensor]
    return {name: (before or {}).get(name, {"stat": {}}) for name in tensors}
