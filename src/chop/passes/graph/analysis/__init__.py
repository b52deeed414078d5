"""Passes that observe and annotate; they never change the graph."""

from chop.compat.old_names import lazy_names
from chop.passes.base import check_exports
from chop.passes.graph.analysis.add_hardware_metadata import add_hardware_metadata_analysis_pass
from chop.passes.graph.analysis.add_metadata import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.analysis.allocate_bits import allocate_bits_analysis_pass
from chop.passes.graph.analysis.autosharding import autosharding_analysis_pass
from chop.passes.graph.analysis.calculate_avg_bits import calculate_avg_bits_mg_analysis_pass
from chop.passes.graph.analysis.calculate_sparsity import calculate_sparsity_analysis_pass
from chop.passes.graph.analysis.calibrate import calibrate_analysis_pass
from chop.passes.graph.analysis.explain import explain_analysis_pass
from chop.passes.graph.analysis.profile_statistics import profile_statistics_analysis_pass
from chop.passes.graph.analysis.report_node_hardware_type import (
    report_node_hardware_type_analysis_pass,
)
from chop.passes.graph.analysis.reports import (
    report_graph_analysis_pass,
    report_node_meta_param_analysis_pass,
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
)
from chop.passes.graph.analysis.runtime import runtime_analysis_pass
from chop.passes.graph.analysis.sensitivity import sensitivity_analysis_pass
from chop.passes.graph.analysis.summarize_graph import summarize_graph_analysis_pass
from chop.passes.graph.analysis.summarize_quantization import (
    summarize_quantization_analysis_pass,
)
from chop.passes.graph.analysis.verify_metadata import verify, verify_metadata_analysis_pass
from chop.passes.ptq.observe.tensor_statistics import STATISTICS

__all__ = [
    "STATISTICS",
    "add_common_metadata_analysis_pass",
    "add_hardware_metadata_analysis_pass",
    "add_software_metadata_analysis_pass",
    "allocate_bits_analysis_pass",
    "autosharding_analysis_pass",
    "calculate_avg_bits_mg_analysis_pass",
    "calculate_sparsity_analysis_pass",
    "calibrate_analysis_pass",
    "explain_analysis_pass",
    "init_metadata_analysis_pass",
    "profile_statistics_analysis_pass",
    "report_graph_analysis_pass",
    "report_node_hardware_type_analysis_pass",
    "report_node_meta_param_analysis_pass",
    "report_node_shape_analysis_pass",
    "report_node_type_analysis_pass",
    "runtime_analysis_pass",
    "sensitivity_analysis_pass",
    "summarize_graph_analysis_pass",
    "summarize_quantization_analysis_pass",
    "verify",
    "verify_metadata_analysis_pass",
]

check_exports(globals())

__getattr__ = lazy_names(__name__)
