"""Number formats in the split of a layer: they round parts of operands as the whole operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from chop.ir.split_rule import DATA_OUT, FollowingTensor, SplitRule
from chop.nn.quantizers import Quantizer

ACTIVATIONS = {"data_in_0": "data_in", DATA_OUT: "data_out"}
"""Operands of a packed linear layer that may have a format, with its role."""
STORED = ("scale", "zero_point")
"""Endings of the names of tensors that a layer stores for an operand."""


def with_formats(rule: SplitRule, layer: Any, roles: Mapping[str, str]) -> SplitRule:
    """Return `rule` with the formats of a layer and their stored scales.

    `roles`: operand -> role of its format in `layer.quantizers`.
    """
    tensors, formats, only = dict(rule.tensors), dict(rule.formats), dict(rule.only)
    for operand, role in roles.items():
        form = layer.quantizers.get(role)
        if form is None or form.is_bypass:
            continue
        formats[operand] = form
        scales = _stored_scales(layer, operand, role, form)
        tensors |= scales
        if any(getattr(layer, name).requires_grad for name in scales):
            only[operand] = _dims_of_learned(operand, next(iter(scales.values())))
    return replace(rule, tensors=tensors, formats=formats, only=only)


def _stored_scales(
    layer: Any, operand: str, role: str, form: Quantizer
) -> dict[str, FollowingTensor]:
    """Return the tensors with the scales of an operand, which are split with it."""
    scaled = form.scaled
    if scaled is None or not scaled.is_stored:
        return {}
    following = {}
    for name in (f"{role}_{ending}" for ending in STORED):
        tensor = getattr(layer, name, None)
        if isinstance(tensor, Tensor):
            rank = tensor.dim()
            by_granularity = {
                "channel": {scaled.axis: 0} if rank else {},
                "group": {dim - rank: dim for dim in range(rank)},
            }
            following[name] = FollowingTensor(operand, by_granularity.get(scaled.granularity, {}))
    return following


def _dims_of_learned(operand: str, scale: FollowingTensor) -> tuple[int, ...]:
    """Return the dimensions whose split leaves the gradient of a learned scale unchanged.

    The gradient depends on the number of elements that share a scale, per sample for an input.
    """
    samples = (0,) if operand.startswith("data_") else ()
    return (*scale.dims, *samples)
