"""Draws docs/images/overview.svg: one model captured, compressed and built, from real results.

The graph and the hardware are those of a perceptron trained on scikit-learn's digits; the curves
are BERT-tiny on IMDb, from bench/imdb/records.csv. A Verilog simulator is needed.

python docs/make_picture.py
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import digits_hardware  # noqa: E402

from chop.actions import build_hardware  # noqa: E402
from chop.report import make_curve  # noqa: E402

OUT = ROOT / "out" / "picture"
PICTURE = ROOT / "docs" / "images" / "overview.svg"
WIDTH, HEIGHT, TOP = 1500, 560, 52
CURVES = (("fitted", "before", "PTQ"), ("fitted", "after", "QAT"), ("half", "before", "PTQ, naive"))
STYLE = "font: 600 19px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2937"


def graph_and_hardware() -> tuple[str, str, str]:
    """The quantised graph, its pipeline, and what the simulation said, drawn and checked."""
    torch.manual_seed(0)
    data = digits_hardware.load()
    model = digits_hardware.train(digits_hardware.DigitsMlp(), data)
    graph = digits_hardware.quantize(model, data.test_images[:2])
    drawn = graph.draw(OUT / "graph.svg").read_text()
    built = build_hardware(graph, OUT, inputs=data.test_images, family=None)
    return drawn, (built.directory / "dataflow.svg").read_text(), str(built.verdict)


def curves() -> str:
    """Accuracy of BERT-tiny on IMDb against width."""
    with (ROOT / "bench" / "imdb" / "records.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["sweep"] == "fixed_point_width"]
    records = [
        {
            "width": int(r["width"]),
            "split": r["split"],
            **{k: float(r[k]) for k in ("before", "after")},
        }
        for r in rows
    ]
    matplotlib.rcParams.update({"svg.hashsalt": "mase", "svg.fonttype": "none", "font.size": 11})
    figure = Figure(figsize=(5.6, 5.2), layout="constrained")
    axes = figure.subplots()
    for split, stage, name in CURVES:
        own = [r for r in records if r["split"] == split]
        curve = make_curve(name, own, "width", stage)
        axes.plot(curve.x, curve.mean, marker="o", label=name)
        axes.fill_between(curve.x, curve.low, curve.high, alpha=0.2)
    axes.set(xlabel="fixed-point width (bits)", ylabel="accuracy, BERT-tiny on IMDb")
    axes.set(xscale="log", xticks=[4, 6, 8, 12, 16, 32], xticklabels=[4, 6, 8, 12, 16, 32])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    path = OUT / "curves.svg"
    figure.savefig(path, metadata={"Date": None})
    return path.read_text()


def panel(svg: str, x: float, width: float, name: str) -> str:
    """A drawing, scaled into its column; its names are made its own."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"@media \(prefers-color-scheme: dark\) \{.*?\n\}\n", "", body, flags=re.S)
    body = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", body)
    size = f'x="{x}" y="{TOP}" width="{width}" height="{HEIGHT - TOP - 12}"'
    opening = re.match(r"<svg[^>]*>", body)
    assert opening, "not a drawing"
    tag = re.sub(r'\s(?:width|height)="[^"]*"', "", opening[0]).replace("<svg", f"<svg {size}", 1)
    return tag + body[opening.end() :]


def main() -> None:
    """Compose the three drawings."""
    OUT.mkdir(parents=True, exist_ok=True)
    graph, pipeline, verdict = graph_and_hardware()
    columns = [
        ("capture: a graph with metadata", graph, 20, 420),
        ("compress: quantise, prune, train", curves(), 460, 500),
        (f"build: {verdict.split(' in ')[0]}", pipeline, 980, 500),
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#ffffff"/>',
    ]
    for number, (title, drawing, x, width) in enumerate(columns):
        middle = x + width / 2
        parts.append(
            f'<text x="{middle}" y="34" text-anchor="middle" style="{STYLE}">{title}</text>'
        )
        parts.append(panel(drawing, x, width, f"p{number}"))
    PICTURE.write_text("\n".join([*parts, "</svg>\n"]))
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
