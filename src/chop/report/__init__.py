"""Reports: one HTML page about a model, and figures saved with the numbers they show."""

from chop.report.curves import Axes, Curve, draw_curves, make_curve
from chop.report.html import write_report
from chop.report.provenance import gather_provenance
from chop.report.records import Report, report_records
from chop.report.sweeps import draw_sweep, sweep_curves

__all__ = [
    "Axes",
    "Curve",
    "Report",
    "draw_curves",
    "draw_sweep",
    "gather_provenance",
    "make_curve",
    "report_records",
    "sweep_curves",
    "write_report",
]
