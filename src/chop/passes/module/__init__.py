"""Passes on plain modules, without a graph."""

from chop.passes.base import check_exports
from chop.passes.module.quantize_module import quantize_module_transform_pass
from chop.passes.module.report_trainable_parameters import (
    report_trainable_parameters_analysis_pass,
)

__all__ = [
    "quantize_module_transform_pass",
    "report_trainable_parameters_analysis_pass",
]

check_exports(globals())
