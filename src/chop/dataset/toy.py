"""Points of two classes that a line cannot part: the smallest task there is."""

from __future__ import annotations

import torch

from chop.dataset.arrays import ArrayDataset


def toy(
    train_size: int = 256, test_size: int = 64, num_features: int = 4, seed: int = 0
) -> dict[str, ArrayDataset]:
    """Points `x` of `num_features` values; the label is 1 where the first two differ in sign."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"train": train_size, "validation": test_size, "test": test_size}
    points = {
        name: torch.randn(size, num_features, generator=generator) for name, size in sizes.items()
    }
    return {
        name: ArrayDataset({"x": x, "labels": (x[:, 0] * x[:, 1] < 0).long()})
        for name, x in points.items()
    }
