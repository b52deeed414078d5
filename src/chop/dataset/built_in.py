"""Built-in datasets by name; to add one, decorate a function of splits: `@DATASETS.entry`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chop.dataset.arrays import ArrayDataset
from chop.registry import Registry

Splits = dict[str, ArrayDataset]

DATASETS: Registry[Callable[..., Splits]] = Registry("dataset")
"""Functions that return {"train": …, "test": …} without a network."""
OF_LANGUAGE = ("markov",)
"""Built-in datasets of language: the labels are the tokens."""


def get_dataset(name: str, **options: Any) -> Splits:
    """Return the splits of the built-in dataset `name`."""
    return DATASETS[name](**options)
