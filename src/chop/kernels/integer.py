"""Linear on int8 weights with one scale per row, through torch's own int8 kernels where they win.

Where each wins is measured (bench/kernels.py, section int8): torch's product of integers on CUDA
and on x86 processors with 8-bit dot products. Elsewhere, and where weights alone are rounded, the
product is that of MXINT8 whose groups all have one scale, which is faster than torch's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chop.kernels.formats import SCALE_BIAS, groups_of
from chop.kernels.ops import multiply
from chop.nn.quantizers.kernels import assume_constant_result

LIMIT = 127
GROUP = 128
"""Columns for which the product of MXINT8 reads a scale."""
UNIT = 7
"""A code counts as code / 2**UNIT in it: sums are no larger than those of x."""
MXINT8_SHIFT = 6
"""The binary places that an MXINT8 element has of itself."""
MIN_ROWS = 17
"""CUDA's integer product takes no fewer rows; fewer are padded."""
MULTIPLE = 8
"""CUDA's integer product takes sizes that are multiples of this."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Int8 codes and one scale per row: amax / 127, 1 for a row of zeros."""
    largest = x.abs().amax(-1)
    scales = torch.where(largest > 0, largest / LIMIT, 1.0)
    codes = (x / scales.unsqueeze(-1)).round().clamp(-LIMIT, LIMIT).to(torch.int8)
    return codes, scales


def unit_scales(codes: Tensor) -> Tensor:
    """The scale bytes with which the product of MXINT8 takes int8 codes."""
    rows, columns = codes.shape
    byte = SCALE_BIAS + MXINT8_SHIFT - UNIT
    return codes.new_full((rows, groups_of(columns, GROUP)), byte, dtype=torch.uint8)


def weight_only_linear(
    x: Tensor, codes: Tensor, units: Tensor, scales: Tensor, bias: Tensor | None
) -> Tensor:
    """`x` times the transposed weight plus bias; activations stay floats.

    `units` are the `unit_scales` of the codes.
    """
    y = _in_units(x, codes, units) * (scales * 2**UNIT)
    return (y if bias is None else y + bias).to(x.dtype)


def _in_units(x: Tensor, codes: Tensor, units: Tensor) -> Tensor:
    """`x` times the transposed codes over 2**UNIT."""
    return multiply(x, codes.view(torch.uint8), units, None, "mxint8", GROUP)


def dynamic_linear(
    x: Tensor, codes: Tensor, units: Tensor, scales: Tensor, bias: Tensor | None
) -> Tensor:
    """The same with each row of `x` rounded to int8; products and sums are those of integers."""
    rows = x.reshape(-1, x.shape[-1])
    x_codes, x_scales = quantize_rows(rows.float())
    y = integer_product(x_codes, codes, units).float() * x_scales[:, None] * scales.float()
    y = y.reshape(*x.shape[:-1], codes.shape[0]).to(x.dtype)
    return y if bias is None else y + bias.to(x.dtype)


def integer_product(x: Tensor, weight: Tensor, units: Tensor) -> Tensor:
    """`x` times the transposed `weight`, both int8: as int32, or as float32, exact below 2**24."""
    takes_sizes = all(n % MULTIPLE == 0 for n in weight.shape)
    if x.is_cuda and takes_sizes and x.shape[0]:
        missing = max(MIN_ROWS - x.shape[0], 0)
        padded = torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x
        return torch._int_mm(padded, weight.t())[: x.shape[0]]
    if x.is_cpu and _has_dot_products() and x.numel():
        return torch._int_mm(x, weight.t())
    return _in_units(x.float(), weight, units) * 2**UNIT


@assume_constant_result
def _has_dot_products() -> bool:
    return bool(torch.cpu._is_vnni_supported())
