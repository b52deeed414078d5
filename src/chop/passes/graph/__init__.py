"""Passes on a MaseGraph."""

from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    profile_statistics_analysis_pass,
    report_graph_analysis_pass,
    report_node_hardware_type_analysis_pass,
    report_node_meta_param_analysis_pass,
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
    summarize_graph_analysis_pass,
    verify,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.transforms import (
    eliminate_common_subexpressions_transform_pass,
    eliminate_dead_code_transform_pass,
    extract_subgraph_transform_pass,
    fold_constants_transform_pass,
    fuse_conv_bn_transform_pass,
    remove_dropout_transform_pass,
    replace_module_transform_pass,
)

__all__ = [
    "add_common_metadata_analysis_pass",
    "add_software_metadata_analysis_pass",
    "eliminate_common_subexpressions_transform_pass",
    "eliminate_dead_code_transform_pass",
    "extract_subgraph_transform_pass",
    "fold_constants_transform_pass",
    "fuse_conv_bn_transform_pass",
    "init_metadata_analysis_pass",
    "profile_statistics_analysis_pass",
    "remove_dropout_transform_pass",
    "replace_module_transform_pass",
    "report_graph_analysis_pass",
    "report_node_hardware_type_analysis_pass",
    "report_node_meta_param_analysis_pass",
    "report_node_shape_analysis_pass",
    "report_node_type_analysis_pass",
    "summarize_graph_analysis_pass",
    "verify",
    "verify_metadata_analysis_pass",
]
