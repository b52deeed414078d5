"""Coefficients that are not negative, by least squares of the relative error."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

HELD_OUT_SHARE = 0.15
"""Of the instances of each kind, drawn by a seed; the models never see them."""
RIDGE = 0.02
"""How strongly the coefficients of a kind are drawn to those of all kinds."""
Inventory = Mapping[str, float]


def held_out(kind: str, count: int) -> set[int]:
    """The numbers of the instances of a kind that are held out."""
    rng = np.random.default_rng([22, zlib.crc32(kind.encode())])
    size = max(1, round(count * HELD_OUT_SHARE))
    return {int(k) for k in rng.choice(count, size, replace=False)}


def nonnegative(gram: np.ndarray, right: np.ndarray, sweeps: int = 3000) -> np.ndarray:
    """x >= 0 with the least x G x / 2 - r x, one coordinate after the other."""
    x = np.zeros(len(right))
    diagonal = np.maximum(np.diag(gram), 1e-12)
    for _ in range(sweeps):
        before = x.copy()
        for k in range(len(x)):
            x[k] = max(0.0, x[k] + (right[k] - gram[k] @ x) / diagonal[k])
        if np.abs(x - before).max() <= 1e-9 * max(1.0, np.abs(x).max()):
            break
    return x


def matrix(rows: Sequence[Inventory], names: Sequence[str]) -> np.ndarray:
    """Amounts, a row for each instance."""
    return np.array([[row.get(name, 0.0) for name in names] for row in rows])


def fit(
    rows: Sequence[Inventory],
    measured: Sequence[float],
    towards: Mapping[str, float] | None = None,
    power: int = 4,
) -> dict[str, float]:
    """Coefficients of the amounts; large relative errors count more (`power` above 2).

    `towards`: coefficients that those of few instances are drawn to.
    """
    names = sorted({name for row in rows for name in row})
    goal = np.maximum(np.asarray(measured, dtype=float), 1.0)
    relative = matrix(rows, names) / goal[:, None]
    scale = np.maximum(np.sqrt((relative**2).mean(axis=0)), 1e-9)
    features = relative / scale
    prior = np.array([(towards or {}).get(name, 0.0) for name in names]) * scale
    pull = RIDGE * len(rows) if towards is not None else 1e-6
    weight, x = np.ones(len(rows)), prior
    for _ in range(1 if power == 2 else 12):
        gram = features.T @ (features * weight[:, None]) + pull * np.eye(len(names))
        x = nonnegative(gram, features.T @ (weight * np.asarray(measured) / goal) + pull * prior)
        error = np.abs(features @ x - np.asarray(measured) / goal)
        weight = np.clip((error / max(error.mean(), 1e-9)) ** (power - 2), 0.2, 10.0)
        weight /= weight.mean()
    return {name: float(v) for name, v in zip(names, x / scale, strict=True) if v > 1e-9}


def total(inventory: Inventory, coefficients: Mapping[str, float]) -> float:
    """The sum of the amounts, each times its coefficient."""
    return sum(coefficients.get(name, 0.0) * amount for name, amount in inventory.items())


def errors(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, Any]:
    """Median and worst relative error."""
    pairs = zip(predicted, measured, strict=True)
    relative = [abs(p - m) / max(m, 1) for p, m in pairs]
    return {
        "count": len(relative),
        "median": float(np.median(relative)) if relative else 0.0,
        "worst": max(relative, default=0.0),
    }
