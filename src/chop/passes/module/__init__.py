"""Passes on plain modules, without a graph."""

from chop.passes.module.report_trainable_parameters import (
    report_trainable_parameters_analysis_pass,
)

__all__ = [
    "report_trainable_parameters_analysis_pass",
]
