"""Built-in datasets by name. To add one: `@DATASETS.entry` on a function that gives splits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chop.dataset.arrays import ArrayDataset
from chop.registry import Registry

Splits = dict[str, ArrayDataset]

DATASETS: Registry[Callable[..., Splits]] = Registry("dataset")
"""Functions that give {"train": …, "test": …} without a network."""
OF_LANGUAGE = ("markov",)
"""Built-in datasets whose labels are the tokens themselves: each next one is to be predicted."""


def get_dataset(name: str, **options: Any) -> Splits:
    """The splits of the built-in dataset `name`."""
    return DATASETS[name](**options)
