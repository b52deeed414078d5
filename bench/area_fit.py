"""Coefficients that are not negative, by least squares of the relative error."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

HELD_OUT_SHARE = 0.15
"""Of the instances of each kind, drawn by a seed; the models never see them."""
RIDGE = 0.003
"""How strongly the coefficients of a kind are drawn to those of all kinds."""
FIRM: Mapping[str, float] = {"cast": 1.0, "carry": 1.0, "skid": 1.0, "counted": 1.0}
"""What is counted in LUTs already is drawn to the count itself, so much more strongly:"""
FIRMNESS = 0.1
Inventory = Mapping[str, float]


def held_out(kind: str, count: int) -> set[int]:
    """The numbers of the instances of a kind that are held out."""
    rng = np.random.default_rng([22, zlib.crc32(kind.encode())])
    size = max(1, round(count * HELD_OUT_SHARE))
    return {int(k) for k in rng.choice(count, size, replace=False)}


def nonnegative(gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """x >= 0 with the least x G x / 2 - r x: Lawson and Hanson's, on the normal equations."""
    x, is_free = np.zeros(len(right)), np.zeros(len(right), bool)
    for _ in range(3 * len(right)):
        gain = np.where(is_free, -np.inf, right - gram @ x)
        if gain.max(initial=-np.inf) <= 1e-9:
            break
        is_free[int(gain.argmax())] = True
        while True:
            free = np.flatnonzero(is_free)
            wanted = np.zeros(len(x))
            wanted[free] = np.linalg.solve(gram[np.ix_(free, free)], right[free])
            below = free[wanted[free] <= 0]
            if not below.size:
                x = wanted
                break
            step = min(x[k] / (x[k] - wanted[k]) for k in below)
            x += step * (wanted - x)
            is_free &= x > 1e-12
            x[~is_free] = 0.0
    return x


def matrix(rows: Sequence[Inventory], names: Sequence[str]) -> np.ndarray:
    """Amounts, a row for each instance."""
    return np.array([[row.get(name, 0.0) for name in names] for row in rows])


def fit(
    rows: Sequence[Inventory],
    measured: Sequence[float],
    towards: Mapping[str, float] | None = None,
    power: float = 2.0,
    firm: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Coefficients of the amounts, by the least sum of relative errors to the given power.

    `towards`: coefficients that those of few instances are drawn to; `firm`: those that are known.
    """
    names = sorted({name for row in rows for name in row})
    goal = np.maximum(np.asarray(measured, dtype=float), 1.0)
    relative = matrix(rows, names) / goal[:, None]
    scale = np.maximum(np.sqrt((relative**2).mean(axis=0)), 1e-9)
    features = relative / scale
    prior = np.array([(towards or {}).get(name, 0.0) for name in names]) * scale
    pull = np.full(len(names), RIDGE * len(rows) if towards is not None else 1e-6)
    for k, name in enumerate(names):
        if firm and name in firm:
            prior[k], pull[k] = firm[name] * scale[k], FIRMNESS * len(rows)
    weight, x = np.ones(len(rows)), prior
    for _ in range(1 if power == 2 else 12):
        gram = features.T @ (features * weight[:, None]) + np.diag(pull)
        x = nonnegative(gram, features.T @ (weight * np.asarray(measured) / goal) + pull * prior)
        error = np.abs(features @ x - np.asarray(measured) / goal)
        spread = np.maximum(error / max(error.mean(), 1e-9), 1e-3)
        weight = np.clip(spread ** (power - 2), 0.2, 10.0)
        weight /= weight.mean()
    return {name: float(v) for name, v in zip(names, x / scale, strict=True)}


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
