"""Reports: figures saved with the numbers they show."""

from chop.report.curves import Axes, Curve, draw_curves, make_curve
from chop.report.sweeps import draw_sweep, sweep_curves

__all__ = ["Axes", "Curve", "draw_curves", "draw_sweep", "make_curve", "sweep_curves"]
