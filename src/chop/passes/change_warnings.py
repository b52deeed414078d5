"""Warnings about a pass that changed little of a model."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from chop.log import get_logger

logger = get_logger(__name__)

LITTLE = 0.05
"""Share of the parameters below which a change is worth a warning."""


def warn_little(where: str, done: str, layers: Iterable[nn.Module], model: nn.Module) -> None:
    """Warn if the changed `layers` have few of the parameters of `model`.

    Layers without parameters are not counted: to name them is not to mean weights.
    """
    owned = {id(layer): {id(p): p.numel() for p in layer.parameters()} for layer in layers}
    count = sum(bool(parameters) for parameters in owned.values())
    changed = sum({k: n for parameters in owned.values() for k, n in parameters.items()}.values())
    total = sum(p.numel() for p in model.parameters())
    if count and changed < LITTLE * total:
        logger.warning(
            "%s: %d layer%s %s, with %s of %s parameters (%.2g %%); the rest is as it was.",
            where,
            count,
            " was" if count == 1 else "s were",
            done,
            f"{changed:,}",
            f"{total:,}",
            100 * changed / total,
        )
