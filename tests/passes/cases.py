"""How the conformance test runs each registered pass: add a row for a new pass.

A case names the zoo's models to run on, makes the arguments for a graph, and says whether running
the pass twice is the same as once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from passes.graphs import BERT, CNN, MLP
from torch import nn

from chop import MaseGraph

Arguments = Callable[[MaseGraph], dict[str, Any]]


@dataclass(frozen=True)
class PassCase:
    """One way to run a pass that should work."""

    arguments: Arguments = lambda graph: {}
    models: tuple[str, ...] = (CNN, BERT)
    is_idempotent: bool = True


def _statistics(graph: MaseGraph) -> dict[str, Any]:
    everything = {"device": "cpu", "dims": "all"}
    return {
        "target_weight_nodes": ["linear"],
        "target_activation_nodes": ["linear"],
        "weight_statistics": {"range_min_max": everything},
        "activation_statistics": {"variance_online": everything},
        "input_generator": [graph.dummy_in],
    }


def _quantize(graph: MaseGraph) -> dict[str, Any]:
    return {"by": "type", "default": {"config": {"name": "mxint"}}}


CASES: dict[str, PassCase] = {
    "add_common_metadata_analysis_pass": PassCase(lambda graph: {"dummy_in": graph.dummy_in}),
    "add_software_metadata_analysis_pass": PassCase(),
    "calculate_avg_bits_mg_analysis_pass": PassCase(),
    "eliminate_common_subexpressions_transform_pass": PassCase(),
    "eliminate_dead_code_transform_pass": PassCase(),
    "extract_subgraph_transform_pass": PassCase(
        lambda graph: {"inputs": ["relu"], "outputs": ["fc2"]}, models=(MLP,), is_idempotent=False
    ),
    "fold_constants_transform_pass": PassCase(),
    "fuse_conv_bn_transform_pass": PassCase(),
    "init_metadata_analysis_pass": PassCase(),
    "profile_statistics_analysis_pass": PassCase(_statistics),
    "quantize_transform_pass": PassCase(_quantize),
    "remove_dropout_transform_pass": PassCase(),
    "replace_module_transform_pass": PassCase(
        lambda graph: {"by": "type", "target": nn.Linear, "factory": lambda module: module}
    ),
    "report_graph_analysis_pass": PassCase(),
    "report_node_hardware_type_analysis_pass": PassCase(),
    "report_node_meta_param_analysis_pass": PassCase(lambda graph: {"which": ("software",)}),
    "report_node_shape_analysis_pass": PassCase(),
    "report_node_type_analysis_pass": PassCase(),
    "summarize_graph_analysis_pass": PassCase(),
    "summarize_quantization_analysis_pass": PassCase(),
    "verify_metadata_analysis_pass": PassCase(),
}
