"""Figures of curves with their spread, saved together with their numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.records import write_csv
from chop.errors import DataError, MissingDependencyError
from chop.files import whole_file

FORMATS = (".png", ".svg")
COLOURS = (
    *("#2b68d9", "#17855a", "#cf5f0a", "#7a4bd3"),
    *("#c2347a", "#0a8190", "#8f6c00", "#66717f"),
)
"""Colours of curves, in order: those of the report's page on a light background."""


@dataclass(frozen=True)
class Curve:
    """Curve: at each x the mean, lowest and highest of the measured values."""

    label: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Points as records."""
        columns = zip(self.x, self.mean, self.low, self.high, strict=True)
        return [
            {"curve": self.label, "x": x, "mean": m, "low": low, "high": high}
            for x, m, low, high in columns
        ]


@dataclass(frozen=True)
class Axes:
    """Title, labels and scales of a figure; `levels` are horizontal lines by name."""

    title: str
    x: str
    y: str
    levels: Mapping[str, float] | None = None
    log_x: bool = False
    is_stepped: bool = False
    """A value holds until the next one, as the best so far does."""


def make_curve(label: str, records: Iterable[Mapping[str, Any]], x: str, y: str) -> Curve:
    """Return the curve of field `y` over field `x`; records with the same x are one point."""
    groups: dict[float, list[float]] = {}
    for record in records:
        if record.get(y) is not None:
            groups.setdefault(record[x], []).append(record[y])
    ordered = sorted(groups.items())
    return Curve(
        label,
        tuple(place for place, _ in ordered),
        tuple(statistics.fmean(values) for _, values in ordered),
        tuple(min(values) for _, values in ordered),
        tuple(max(values) for _, values in ordered),
    )


def draw_curves(path: str | Path, curves: Sequence[Curve], axes: Axes) -> list[Path]:
    """Write `<path>.png`, `<path>.svg` and the numbers drawn, `<path>.csv`."""
    if not any(curve.x for curve in curves):
        raise DataError(f"draw_curves: there is nothing to draw in '{path}'.")
    plot = pyplot()
    figure, plane = plot.subplots(figsize=(7.0, 4.4), layout="constrained")
    _draw(plane, [curve for curve in curves if curve.x], is_stepped=axes.is_stepped)
    for name, level in (axes.levels or {}).items():
        plane.axhline(level, linestyle="--", linewidth=1, color="grey", label=name)
    plane.set(title=axes.title, xlabel=axes.x, ylabel=axes.y)
    if axes.log_x:
        plane.set_xscale("log", base=2)
    end_at_one(plane, axes.y)
    plane.grid(alpha=0.3)
    legend_below(figure, plane)
    return save_figure(path, figure, [row for curve in curves for row in curve.rows])


def _draw(plane: Any, curves: Sequence[Curve], *, is_stepped: bool) -> None:
    """Draw the lines with their bands; the dash pattern changes when the colours repeat."""
    how = {"drawstyle": "steps-post"} if is_stepped else {}
    for i, curve in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        dash = ("-", "--", ":")[i // len(COLOURS) % 3]
        plane.plot(
            *(curve.x, curve.mean),
            **{"marker": "o", "markersize": 4, "color": colour, "linestyle": dash, **how},
            label=curve.label,
        )
        step = {"step": "post"} if is_stepped else {}
        plane.fill_between(curve.x, curve.low, curve.high, alpha=0.15, color=colour, **step)


def end_at_one(plane: Any, quantity: str) -> None:
    """Limit the axis of an accuracy to the range from 0 to 1."""
    low, high = plane.get_ylim()
    if quantity.endswith("accuracy") or "accuracy" in quantity.split():
        plane.set_ylim(max(low, 0.0), min(high, 1.0))


def legend_below(figure: Any, plane: Any) -> None:
    """Draw the legend below the data if there is more than one label."""
    handles, labels = plane.get_legend_handles_labels()
    if len(labels) > 1:
        columns = 1 if max(map(len, labels)) > 34 else 2 if len(labels) < 5 else 3
        figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
        )


def save_figure(path: str | Path, figure: Any, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write `<path>.png`, `<path>.svg` and the numbers drawn, `<path>.csv`; close the figure."""
    files = [Path(path).with_suffix(suffix) for suffix in FORMATS]
    for file in files:
        metadata = {"Date": None} if file.suffix == ".svg" else {}  # same data, same file
        with whole_file(file) as draft:
            figure.savefig(draft, format=file.suffix[1:], dpi=150, metadata=metadata)
    pyplot().close(figure)
    return [*files, write_csv(Path(path).with_suffix(".csv"), [dict(row) for row in rows])]


def pyplot() -> Any:
    """Return matplotlib's pyplot, set up to write reproducible files."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError(
            "draw_curves: matplotlib is not installed. Install it: pip install 'masegraph[train]'."
        ) from error
    matplotlib.rcParams["svg.hashsalt"] = "mase"  # reproducible ids in the file
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    return pyplot
