"""Figure of the loss that each layer adds to a quantised model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.errors import MissingDependencyError
from chop.files import make_folder


def explain_figure(loss: float, layers: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Draw the loss of each layer and operand alone, and that of the whole model as a line.

    `loss` and `layers`: results of `explain_analysis_pass`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "explain_figure: matplotlib is not installed. pip install matplotlib"
        ) from error
    figure = Figure(figsize=(7.0, 1.4 + 0.42 * max(len(layers), 1)), layout="constrained")
    axes = figure.subplots()
    names = [str(row["layer"]) for row in layers]
    axes.barh(names, [row["loss"] for row in layers], color="#9aa5b1", label="the layer alone")
    for number, role in enumerate(dict.fromkeys(r for row in layers for r in row["operands"])):
        points = [
            (i, row["operands"][role]) for i, row in enumerate(layers) if role in row["operands"]
        ]
        places, values = zip(*points, strict=True)
        axes.plot(values, places, "o", color=f"C{number}", label=f"its {role} alone")
    axes.axvline(loss, color="black", linestyle="--", linewidth=1, label="the whole model")
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("divergence from the float model (nats a row)")
    axes.set_title("What each layer's formats add to the loss")
    figure.legend(loc="outside lower center", ncols=3)
    target = Path(path)
    make_folder(target.parent)
    figure.savefig(target)
    return target
