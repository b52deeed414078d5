"""Units of printed values. Add a row for each new measure or cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SHARE, COUNT, BITS, BYTES, SECONDS = "share", "count", "bits", "bytes", "s"

UNITS = {
    **dict.fromkeys(("parameters", "macs", "flops", "multipliers", "lut", "nodes"), COUNT),
    **dict.fromkeys(("predicted_lut", "predicted_ff", "predicted_dsp", "predicted_bram"), COUNT),
    "predicted_mhz": "MHz",
    "frames_per_second": "1/s",
    **dict.fromkeys(("weight_bits", "activation_bits", "width", "memory_bits"), BITS),
    **dict.fromkeys(("average_bits", "average_activation_bits", "average_linear_bits"), BITS),
    **dict.fromkeys(("integer_bits", "fraction_bits"), BITS),
    **dict.fromkeys(("bytes", "model_bytes", "bytes_moved", "activation_peak"), BYTES),
    **dict.fromkeys(("sparsity", "model_sparsity"), SHARE),
    **dict.fromkeys(("accuracy", "precision", "recall", "f1"), SHARE),
    **dict.fromkeys(("float accuracy", "compressed accuracy"), SHARE),
    "token_agreement": SHARE,
    "perplexity": "tokens",
    "matthews_correlation": "-1 to 1",
    "mse": "label units squared",
    "mae": "label units",
    "loss": "mean of a row",
    "latency": SECONDS,
    "seconds": SECONDS,
    "cycles": "cycles",
}
"""Name -> unit."""


def unit_of(name: str) -> str:
    """Return the unit of the measure `name`, or an empty text."""
    return UNITS.get(name.replace(" ", "_"), UNITS.get(name, ""))


def titled(record: Mapping[str, Any], units: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a row with units in its column titles; `units` override the table."""
    all_units = {**{name: unit_of(name) for name in record}, **(units or {})}
    return {
        f"{name} ({all_units[name]})" if all_units[name] not in ("", COUNT) else name: value
        for name, value in record.items()
    }


def with_units(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that start with the name of a measure, with its unit at the end."""
    return [{**row, "unit": unit_of(str(next(iter(row.values()))))} for row in rows]
