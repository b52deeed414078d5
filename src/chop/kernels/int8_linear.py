"""Linear on int8 weights with one scale per row.

Torch's integer product is faster on CUDA and on x86 processors with 8-bit dot products
(bench/kernels.py, section int8). Elsewhere, and for float activations, the MXINT8 product is used,
with one scale for all groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chop.kernels.ops import multiply
from chop.kernels.packed_formats import SCALE_BIAS, groups_of
from chop.nn.quantizers.kernels import assume_constant_result

LIMIT = 127
GROUP = 128
"""Columns per scale of the MXINT8 product."""
UNIT = 7
"""Value of a code there: code / 2**UNIT, so that sums are no larger than those of x."""
MXINT8_SHIFT = 6
"""Binary places of an MXINT8 element."""
MIN_ROWS = 17
"""Fewest rows of CUDA's integer product; fewer are padded."""
MULTIPLE = 8
"""Sizes of CUDA's integer product are multiples of this."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 codes and one scale per row: amax / 127, 1 for a row of zeros."""
    largest = x.abs().amax(-1)
    scales = torch.where(largest > 0, largest / LIMIT, 1.0)
    codes = (x / scales.unsqueeze(-1)).round().clamp(-LIMIT, LIMIT).to(torch.int8)
    return codes, scales


def unit_scales(codes: Tensor) -> Tensor:
    """Return the scale bytes of int8 codes for the MXINT8 product."""
    rows, columns = codes.shape
    byte = SCALE_BIAS + MXINT8_SHIFT - UNIT
    return codes.new_full((rows, groups_of(columns, GROUP)), byte, dtype=torch.uint8)


def weight_only_linear(
    x: Tensor, codes: Tensor, units: Tensor, scales: Tensor, bias: Tensor | None
) -> Tensor:
    """Return `x` times the transposed weight plus bias, with `unit_scales` as `units`."""
    y = _in_units(x, codes, units) * (scales * 2**UNIT)
    return (y if bias is None else y + bias).to(x.dtype)


def _in_units(x: Tensor, codes: Tensor, units: Tensor) -> Tensor:
    """Return `x` times the transposed codes over 2**UNIT."""
    return multiply(x, codes.view(torch.uint8), units, None, "mxint8", GROUP)


def dynamic_linear(
    x: Tensor, codes: Tensor, units: Tensor, scales: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the product with each row of `x` rounded to int8, computed in integers."""
    rows = x.reshape(-1, x.shape[-1])
    x_codes, x_scales = quantize_rows(rows.float())
    y = integer_product(x_codes, codes, units).float() * x_scales[:, None] * scales.float()
    y = y.reshape(*x.shape[:-1], codes.shape[0]).to(x.dtype)
    return y if bias is None else y + bias.to(x.dtype)


def integer_product(x: Tensor, weight: Tensor, units: Tensor) -> Tensor:
    """Return the int8 product `x @ weight.T` as int32, or as float32, exact below 2**24."""
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
