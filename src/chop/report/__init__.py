"""Reports: one HTML page about a model, and figures saved with the numbers they show."""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "Axes": "chop.report.curves",
    "Curve": "chop.report.curves",
    "Report": "chop.report.page_records",
    "compare_reports": "chop.report.report_comparison",
    "draw_curves": "chop.report.curves",
    "draw_sweep": "chop.report.sweep_figures",
    "gather_provenance": "chop.report.provenance",
    "make_curve": "chop.report.curves",
    "report_records": "chop.report.page_records",
    "sweep_curves": "chop.report.sweep_figures",
    "write_report": "chop.report.html",
}
"""Name -> module, imported lazily: only a page about a model needs the trainer's packages."""

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'chop.report' has no attribute '{name}'")
