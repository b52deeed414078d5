"""Packing and unpacking in PyTorch: the reference of all back ends."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from chop.kernels.packed_formats import SCALE_BIAS, SCALE_NAN, PackedFormat, packed_format
from chop.nn.quantizers import ScaleInteger
from chop.nn.quantizers.blocks import split
from chop.nn.quantizers.powers import times_power

ELEMENTS_AT_ONCE = 1 << 22
"""Elements packed or multiplied at a time, so that temporaries stay small."""


def pack_rows(x: Tensor, format: PackedFormat, group_size: int) -> tuple[Tensor, Tensor]:
    """Return codes and scales of a matrix."""
    rows, columns = x.shape
    codes = x.new_empty((rows, format.code_bytes(columns)), dtype=torch.uint8)
    scales = x.new_empty((rows, format.row_scale_bytes(columns, group_size)), dtype=torch.uint8)
    step = max(ELEMENTS_AT_ONCE // max(columns, 1), 1)
    for first in range(0, rows if columns else 0, step):
        part = slice(first, first + step)
        codes[part], scales[part] = _pack_part(x[part], format, group_size)
    return codes, scales


def _pack_part(x: Tensor, format: PackedFormat, group_size: int) -> tuple[Tensor, Tensor]:
    wide = x if x.dtype == torch.float64 else x.float()
    quantizer = format.quantizer(group_size)
    if quantizer.scaled is not None:
        return _pack_integers(wide.float(), quantizer.scaled, format)
    blocks = quantizer.blocks
    assert blocks is not None, f"{quantizer} shares neither a scale nor an exponent"
    largest = split(wide, (1, group_size)).abs().amax((-3, -1))
    exponent = blocks.scale_exponent(largest)
    scales = torch.where(largest.isfinite(), exponent + SCALE_BIAS, SCALE_NAN).to(torch.uint8)
    elements = times_power(blocks(wide), -spread(exponent, group_size, x.shape[-1]))
    return join_codes(format.element.encode(elements), format), scales


def _pack_integers(x: Tensor, form: ScaleInteger, format: PackedFormat) -> tuple[Tensor, Tensor]:
    scales = form.scales_of(x).expand_as(x)[:, :: form.group_size]
    whole = (x / spread(scales, form.group_size, x.shape[-1])).round().clamp(*form.integers)
    return join_codes(format.element.encode(whole), format), scale_bytes(scales)


def scale_bytes(scales: Tensor) -> Tensor:
    """Return real scales as bytes."""
    return torch.empty(scales.shape, device=scales.device).copy_(scales).view(torch.uint8)


def real_scales(as_bytes: Tensor) -> Tensor:
    """Return real scales from their bytes."""
    contiguous = torch.empty(as_bytes.shape, dtype=torch.uint8, device=as_bytes.device)
    return contiguous.copy_(as_bytes).view(torch.float32)


def spread(per_group: Tensor, group_size: int, columns: int) -> Tensor:
    """Repeat one value per group to one per column."""
    return per_group.repeat_interleave(group_size, -1)[..., :columns]


def join_codes(codes: Tensor, format: PackedFormat) -> Tensor:
    """Join codes into full bytes, the first in the low bits."""
    if format.per_byte == 1:
        return codes
    if codes.shape[-1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def split_codes(codes: Tensor, format: PackedFormat, columns: int) -> Tensor:
    """Split bytes into codes."""
    if format.per_byte == 1:
        return codes
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)[..., :columns]


def scale_values(scales: Tensor) -> Tensor:
    """Return 2**(byte - 127) as float32, NaN for 255, by its bits."""
    bits = scales.int() << 23
    bits = torch.where(scales == 0, 1 << 22, bits)  # 2**-127 is subnormal in float32
    bits = torch.where(scales == SCALE_NAN, 0x7FC00000, bits)
    return bits.view(torch.float32)


def unpack(
    codes: Tensor, scales: Tensor, format: str, group_size: int, columns: int, dtype: torch.dtype
) -> Tensor:
    """Return element times scale, exact in float32, then rounded to `dtype`."""
    row = packed_format(format)
    assert row is not None, f"no packed format '{format}'"
    elements = row.element.decode(split_codes(codes, row, columns))
    if row.has_real_scales:
        real = spread(real_scales(scales), group_size, columns)
        return (elements * real + 0.0).to(dtype)  # zero has no sign, of a negative scale either
    return (elements * scale_values(spread(scales, group_size, columns))).to(dtype)


def linear(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    format: str,
    group_size: int,
    *,
    at_once: int = ELEMENTS_AT_ONCE,
    unpack: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Return `x` times the transposed weight plus bias, unpacking `at_once` elements at a time.

    A back end may pass its `unpack`, which saves a dispatch.
    """
    unpack = unpack or torch.ops.mase.unpack
    rows, columns = codes.shape[0], x.shape[-1]
    step = max(at_once // max(columns, 1), 1)
    if step >= rows:
        weight = unpack(codes, scales, format, group_size, columns, x.dtype)
        return torch.nn.functional.linear(x, weight, None if bias is None else bias.to(x.dtype))
    y = x.new_empty((*x.shape[:-1], rows))
    for first in range(0, rows, step):
        part = slice(first, first + step)
        weight = unpack(codes[part], scales[part], format, group_size, columns, x.dtype)
        y[..., part] = torch.nn.functional.linear(x, weight)
    return y if bias is None else y.add_(bias)


def dequantize_mxint8(codes: Tensor, scales: Tensor, group_size: int) -> Tensor:
    """Convert MXINT8 to bfloat16 by assembling the bits of each number, step by step.

    A bfloat16 is a sign, 8 exponent bits and 7 fraction bits; unless the exponent is 0, a leading
    one that is not stored stands before the fraction. An MXINT8 element is a sign and, once that
    is taken off, one integer bit and six fraction bits.

    >>> dequantize_mxint8(torch.tensor([[96, 48]], dtype=torch.int8),
    ...                   torch.tensor([[127]], dtype=torch.uint8), 2).tolist()
    [[1.5, 0.75]]
    """
    code = codes.view(torch.int8).int()
    exponent = spread(scales, group_size, codes.shape[-1]).int()
    sign = (code & 0x80) << 8  # the top bit of 16
    magnitude = code.abs()
    fraction = (magnitude & 0x3F) << 1  # six bits, moved up to bfloat16's seven
    with_leading_one = _bfloat16(sign | exponent << 7 | fraction)
    # Where the integer bit is 0 there is no leading one: take the one that bfloat16 implies away.
    leading_one = _bfloat16(sign | exponent << 7)
    has_leading_one = (magnitude & 0x40) != 0
    value = torch.where(has_leading_one, with_leading_one, with_leading_one - leading_one)
    # Code -128 is two, not one: its magnitude has neither of the bits looked at so far.
    value = torch.where(magnitude == 0x80, _bfloat16(sign | (exponent + 1) << 7), value)
    # Exponent 0 implies no leading one: the magnitude is the subnormal number.
    value = torch.where(exponent == 0, _bfloat16(sign | magnitude), value)
    value = torch.where(magnitude == 0, 0.0, value)  # zero minus zero keeps no sign
    return torch.where(exponent == SCALE_NAN, torch.nan, value)


def _bfloat16(bits: Tensor) -> Tensor:
    return bits.to(torch.int16).view(torch.bfloat16)
