"""The errors of predicted cells and clocks against routed designs, by kind of design.

    python bench/prediction_bands.py

Reads what was routed (bench/results/physical.json, hardware_pareto.json), predicts the designs of
the former with the committed coefficients, and writes chop/hw/flow/predict/bands.json. No
coefficient was fitted to a routed whole design. The predictions of hardware_pareto.json were made
before routing; they have no count of packed flip-flops, so the errors of flip-flops are those of
physical.json alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from area_designs import DESIGNS
from measuring.record import RESULTS

from chop.hw.flow.predict import predict
from chop.hw.flow.predict.bands import BANDS, QUANTITIES

ROUTED = {
    "linear": "Linear 16-16 + ReLU",
    "mlp": "digits MLP, 4 lanes",
    "cnn": "digits CNN, 4 lanes",
    "vit": "ViT, 2 lanes",
}
"""Designs of physical.json by their names in area_designs.py."""
KINDS = {"cnn": "convolutional", "vit": "transformer"}
"""Kinds of the models of hardware_pareto.json."""
FAMILY = "ecp5"


def physical_rows() -> list[tuple[str, dict[str, float]]]:
    """Return kind and measured / predicted of each quantity for the designs of physical.json."""
    told = json.loads((RESULTS / "physical.json").read_text())
    rows = []
    for name, design in ROUTED.items():
        made, routed = predict(DESIGNS[design](), FAMILY), told[name]["results"]
        predicted = {"lut": made.lut, "ff": made.ff_placed, "mhz": made.mhz}
        measured = {**routed["used"], "mhz": routed["mhz_median"]}
        rows.append((made.kind, {k: measured[k] / predicted[k] for k in QUANTITIES}))
    return rows


def pareto_rows() -> list[tuple[str, dict[str, float]]]:
    """Return the same for the designs of hardware_pareto.json."""
    told = json.loads((RESULTS / "hardware_pareto.json").read_text())["results"]["rows"]
    rows = []
    for row in told:
        predicted, routed = row["predicted"], row["routed"]
        ratios = {
            "lut": routed["lut_placed"] / predicted["lut"],
            "mhz": routed["mhz"] / predicted["mhz"],
        }
        rows.append((KINDS[row["model"]], ratios))
    return rows


def main() -> None:
    """Write the bands and print the rows."""
    by_kind: dict[str, list[dict[str, float]]] = defaultdict(list)
    for kind, ratios in physical_rows() + pareto_rows():
        print(kind, {name: f"{100 * (r - 1):+.1f} %" for name, r in ratios.items()})
        by_kind[kind].append(ratios)
    bands: dict[str, Any] = {}
    for kind, rows in sorted(by_kind.items()):
        errors = {}
        for name in QUANTITIES:
            ratios_of = [100 * (row[name] - 1) for row in rows if name in row]
            errors[name] = [round(min(ratios_of), 1), round(max(ratios_of), 1)]
        bands[kind] = {"designs": len(rows), "errors": errors}
    BANDS.write_text(json.dumps({FAMILY: bands}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
