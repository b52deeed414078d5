"""Draws the number formats of the registry and writes their table into docs/formats.md.

python docs/make_formats.py
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from chop.nn.quantizers import FORMATS, Quantizer, make_quantizer
from chop.nn.quantizers.spelling import grammar

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "formats.md"
FAMILIES: dict[str, dict[str, dict[str, Any]]] = {
    "fixed": {
        "integer": {"width": 6, "frac_width": 3},
        "scale_integer": {"width": 5, "scale": 0.25},
    },
    "signs": {
        "binary": {},
        "binary_scaling": {},
        "binary_residual": {"levels": 3},
        "ternary": {"scaling_factor": True},
    },
    "floats": {
        "minifloat_ieee": {"width": 6, "exponent_width": 3},
        "minifloat_denorm": {"width": 6, "exponent_width": 3},
        "log": {"width": 5},
        "fp8": {"element": "e4m3"},
    },
    "blocks": {
        "mxint": {"width": 6},
        "block_fp": {"width": 5},
        "mxfp": {"element": "e2m1"},
        "block_minifloat": {"width": 5, "exponent_width": 2},
        "block_log": {"width": 4},
        "nvfp4": {},
        "fp8_block": {},
    },
}
"""Family -> format -> the settings it is drawn with. Add a format where it belongs."""
NOT_DRAWN = ("bypass",)
LARGEST = 4.0
"""The block that is drawn reaches from -LARGEST to LARGEST."""
COMMON = ("ste", "rounding", "seed")
BEYOND = 32.0
"""How far the error is drawn for formats that do not look at the whole tensor."""
MEASURED = (*FAMILIES["blocks"], *FAMILIES["signs"])
MARKS = ("<!-- formats: written by docs/make_formats.py -->", "<!-- end of formats -->")


def make(name: str, settings: dict[str, Any]) -> Quantizer:
    """The format with its settings; for block formats all that is drawn is one block."""
    fields = {field.name for field in dataclasses.fields(FORMATS[name])}
    whole = {"block_size": -1} if "block_size" in fields else {}
    return make_quantizer(name, {**settings, **whole}, name)


def label(name: str, settings: dict[str, Any]) -> str:
    """The format's name and settings on one line."""
    given = ", ".join(f"{key} {value}" for key, value in settings.items())
    return f"{name}: {given}" if given else name


def values(quantizer: Quantizer) -> Tensor:
    """What the format makes of a fine grid from -LARGEST to LARGEST."""
    return quantizer.quantize(grid(LARGEST)).unique()


def grid(largest: float) -> Tensor:
    """Evenly spaced numbers from -largest to largest."""
    return torch.linspace(-largest, largest, 2**20 + 1)


def relative_error(name: str, quantizer: Quantizer) -> tuple[Tensor, Tensor]:
    """Magnitudes, and the largest |q(x) - x| / |x| from each to the next."""
    x = grid(LARGEST if name in MEASURED else BEYOND)
    error = ((quantizer.quantize(x) - x) / x).abs()
    edges = 2.0 ** torch.linspace(-7.0, math.log2(float(x.max())), 97)
    bins = torch.bucketize(x, edges)
    worst = torch.zeros(len(edges) + 1).scatter_reduce(0, bins, error.nan_to_num(), "amax")
    return (edges[:-1] * edges[1:]).sqrt(), worst[1:-1]


def power(x: float, _: int) -> str:
    """A tick of the axis: 2⁻³."""
    return "2" + str(round(math.log2(x))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def draw(family: str) -> Path:
    """The figure of a family: values on a line, and the rounding error against magnitude."""
    matplotlib.rcParams.update({"svg.hashsalt": "mase", "svg.fonttype": "none", "font.size": 9})
    drawn = FAMILIES[family]
    figure = Figure(figsize=(8.2, 1.2 + 0.62 * len(drawn) + 1.9), layout="constrained")
    line, error = figure.subplots(2, 1, height_ratios=[0.62 * len(drawn), 1.9])
    for row, (name, settings) in enumerate(drawn.items()):
        quantizer = make(name, settings)
        points = values(quantizer)
        points = points[points.abs() <= LARGEST]
        colour = f"C{row}"
        line.vlines(points, -row - 0.28, -row + 0.1, colors=colour, linewidth=1.1)
        line.text(-LARGEST, -row + 0.17, label(name, settings), color=colour)
        x, y = relative_error(name, quantizer)
        error.plot(x, y.clamp(min=1e-3), color=colour, linewidth=1.3, label=name)
    line.set(xlim=(-LARGEST - 0.1, LARGEST + 0.1), ylim=(-len(drawn) + 0.6, 0.6), yticks=[])
    line.set(xlabel="value", title=f"values from −{LARGEST:g} to {LARGEST:g}")
    error.set(xscale="log", yscale="log", ylim=(1e-3, 2), xlabel="magnitude")
    error.set(ylabel="relative error, worst")
    error.xaxis.set_major_locator(matplotlib.ticker.LogLocator(base=2, numticks=14))
    error.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(power))
    error.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    error.grid(alpha=0.3)
    path = DOCS / "images" / f"formats_{family}.svg"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    return path


def table() -> str:
    """Return every format of the registry: spelling, layer, keys with defaults, and values."""
    lines = ["| `name` | spelling | layer | keys | values |", "|---|---|---|---|---|"]
    for name, cls in FORMATS.items():
        names = " or ".join(f"`{each}`" for each in (name, *cls.aliases))
        keys = [f for f in dataclasses.fields(cls) if f.name not in COMMON]
        shown = ", ".join(_key(field) for field in keys) or "none"
        first = str(cls.__doc__).splitlines()[0].replace("|", "\\|")
        spelled = f"`{grammar(cls)}`"
        lines.append(f"| {names} | {spelled} | `Linear{cls.class_suffix}` | {shown} | {first} |")
    return "\n".join(lines)


def _key(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return f"**`{field.name}`**"
    return f"`{field.name}` = {str(field.default).lower()}"


def page(text: str) -> str:
    """`text` with the table between its marks as the registry has it now."""
    between = re.compile(f"{re.escape(MARKS[0])}.*?{re.escape(MARKS[1])}", re.S)
    return between.sub(lambda _: f"{MARKS[0]}\n\n{table()}\n\n{MARKS[1]}", text)


def main() -> None:
    """Draw every family and bring the page up to date."""
    for family in FAMILIES:
        path = draw(family)
        print(f"{path.relative_to(DOCS.parent)}: {path.stat().st_size / 1000:.0f} kB")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
