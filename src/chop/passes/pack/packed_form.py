"""The packed format that holds exactly the values of a quantised weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.kernels import GROUP_SIZES, PackedTensor, unpack
from chop.kernels.ops import pack_integers
from chop.kernels.reference import spread
from chop.nn.quantizers import Quantizer, ScaleInteger
from chop.nn.quantizers.stored_scale import ScaledInteger


class KeepError(Exception):
    """Why a module is not packed."""


def mx_form(quantizer: Quantizer) -> tuple[str, int]:
    """The MX format and group size that hold exactly the values of `quantizer`."""
    layout, size = quantizer.packed_layout, quantizer.group_columns
    if layout is not None and size in GROUP_SIZES and not layout.has_real_scales:
        return layout.name, size
    raise KeepError(f"no packed format holds weights in {quantizer}")


def packed_integers(weight: Tensor, quantizer: ScaleInteger | ScaledInteger) -> PackedTensor:
    """`weight` in its format, as integers and scales; bit for bit what the format gives.

    Scales may be measured, given or stored, negative too; a zero point is taken off the integers.
    """
    weight = weight.detach()
    if weight.dtype == torch.float64:
        raise KeepError("no packed format holds float64")
    values = quantizer(weight)
    rows = values.float().reshape(-1, weight.shape[-1])
    form = quantizer.format if isinstance(quantizer, ScaledInteger) else quantizer
    scales = quantizer.scales_of(weight.float()).expand(weight.shape).reshape(rows.shape)
    group = _kernel_group(form, weight)
    per_group = scales[:, ::group]
    whole = (rows / spread(per_group, group, rows.shape[1])).round()
    lead = weight.shape[:-1]
    try:
        packed = pack_integers(
            whole.reshape(weight.shape), per_group.reshape(*lead, per_group.shape[1]), group
        )
    except ConfigError as error:
        raise KeepError(f"no packed format holds weights in {form}") from error
    if not torch.equal(unpack(packed, values.dtype), values):
        raise KeepError(f"weights in {form} are no integers times one scale for each group")
    return packed


def _kernel_group(form: ScaleInteger, weight: Tensor) -> int:
    """Columns that share a scale, as the kernels take them: a power of two, 16 at least."""
    columns = weight.shape[-1]
    if form.granularity == "channel" and form.axis % weight.dim() == weight.dim() - 1:
        raise KeepError("has a scale for each input, and packed weights have them for each output")
    size = form.group_size if form.granularity == "group" else columns
    if size >= columns:
        return max(GROUP_SIZES[0], 1 << (columns - 1).bit_length())
    if size % GROUP_SIZES[0]:
        raise KeepError(f"groups of {size} are no multiple of {GROUP_SIZES[0]}")
    return size & -size


def stored_tensors(layer: Any, roles: tuple[str, ...]) -> dict[str, Tensor]:
    """The scales and zero points that `layer` keeps for the operands `roles`."""
    names = [f"{role}_{part}" for role in roles for part in ("scale", "zero_point")]
    found = {name: getattr(layer, name, None) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}
