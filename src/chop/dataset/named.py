"""Built-in datasets by name. To add one: write a function that gives its splits, list it here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chop.dataset.arrays import ArrayDataset
from chop.dataset.digits import digits
from chop.dataset.sequences import sequences
from chop.registry import Registry

Splits = dict[str, ArrayDataset]

DATASETS: Registry[Callable[..., Splits]] = Registry("dataset")
"""Functions that give {"train": …, "test": …} without a network."""

DATASETS.register("digits", digits)
DATASETS.register("sequences", sequences)


def get_dataset(name: str, **options: Any) -> Splits:
    """The splits of the built-in dataset `name`."""
    return DATASETS[name](**options)
