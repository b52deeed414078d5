"""Fronts of rows with a count of right answers and a count of cells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


def front(rows: Iterable[Row], size: str) -> list[Row]:
    """Return the rows that no other one beats in both `right` and `size`, smallest first."""
    kept: list[Row] = []
    for row in sorted(rows, key=lambda r: (r[size], -r["right"])):
        if not kept or row["right"] > kept[-1]["right"]:
            kept.append(row)
    return kept


def fewest_luts(rows: Iterable[Row]) -> list[Row]:
    """Return the conversion with the fewest LUTs for each model; failed ones have no LUTs."""
    models: dict[str, Row] = {}
    for row in rows:
        if "lut" in row and row["lut"] < models.get(row["model"], row | {"lut": 1 << 30})["lut"]:
            models[row["model"]] = row
    return list(models.values())
