"""Passes: analyse and transform a MaseGraph, or a plain module."""

from chop.passes.base import PASSES, graph_pass
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    calculate_avg_bits_mg_analysis_pass,
    eliminate_common_subexpressions_transform_pass,
    eliminate_dead_code_transform_pass,
    extract_subgraph_transform_pass,
    fold_constants_transform_pass,
    fuse_conv_bn_transform_pass,
    init_metadata_analysis_pass,
    profile_statistics_analysis_pass,
    quantize_transform_pass,
    remove_dropout_transform_pass,
    replace_module_transform_pass,
    report_graph_analysis_pass,
    report_node_hardware_type_analysis_pass,
    report_node_meta_param_analysis_pass,
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
    summarize_graph_analysis_pass,
    summarize_quantization_analysis_pass,
    verify,
    verify_metadata_analysis_pass,
)
from chop.passes.module import (
    quantize_module_transform_pass,
    report_trainable_parameters_analysis_pass,
)

ANALYSIS_PASSES = tuple(name for name in PASSES if name.endswith("_analysis_pass"))
TRANSFORM_PASSES = tuple(name for name in PASSES if name.endswith("_transform_pass"))
INTERFACE_PASSES = tuple(name for name in PASSES if name.endswith("_interface_pass"))
"""Names of the passes of each kind."""

__all__ = [
    "ANALYSIS_PASSES",
    "INTERFACE_PASSES",
    "PASSES",
    "TRANSFORM_PASSES",
    "add_common_metadata_analysis_pass",
    "add_software_metadata_analysis_pass",
    "calculate_avg_bits_mg_analysis_pass",
    "eliminate_common_subexpressions_transform_pass",
    "eliminate_dead_code_transform_pass",
    "extract_subgraph_transform_pass",
    "fold_constants_transform_pass",
    "fuse_conv_bn_transform_pass",
    "graph_pass",
    "init_metadata_analysis_pass",
    "profile_statistics_analysis_pass",
    "quantize_module_transform_pass",
    "quantize_transform_pass",
    "remove_dropout_transform_pass",
    "replace_module_transform_pass",
    "report_graph_analysis_pass",
    "report_node_hardware_type_analysis_pass",
    "report_node_meta_param_analysis_pass",
    "report_node_shape_analysis_pass",
    "report_node_type_analysis_pass",
    "report_trainable_parameters_analysis_pass",
    "summarize_graph_analysis_pass",
    "summarize_quantization_analysis_pass",
    "verify",
    "verify_metadata_analysis_pass",
]
