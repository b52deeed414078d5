"""Linear on int8 weights with one scale per row, through torch's own int8 kernels where they win.

Where each wins was measured: the integer product on CUDA and on x86 processors with 8-bit dot
products; torch's weight-only kernel on CPUs. Elsewhere the integers are multiplied as floats.
"""

from __future__ import annotations

import torch
from torch import Tensor

LIMIT = 127
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


def weight_only_linear(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """`x` times the transposed weight plus bias; activations stay floats."""
    rows = x.reshape(-1, x.shape[-1])
    if x.is_cpu and rows.numel() and not torch.is_grad_enabled():
        y = torch._weight_int8pack_mm(rows.contiguous(), codes, scales.to(x.dtype))
    else:
        y = torch.nn.functional.linear(rows, codes.to(x.dtype)) * scales.to(x.dtype)
    y = y.reshape(*x.shape[:-1], codes.shape[0])
    return y if bias is None else y + bias.to(x.dtype)


def dynamic_linear(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """The same with each row of `x` rounded to int8; products and sums are those of integers."""
    rows = x.reshape(-1, x.shape[-1])
    x_codes, x_scales = quantize_rows(rows.float())
    y = integer_product(x_codes, codes).float() * x_scales[:, None] * scales.float()
    y = y.reshape(*x.shape[:-1], codes.shape[0]).to(x.dtype)
    return y if bias is None else y + bias.to(x.dtype)


def integer_product(x: Tensor, weight: Tensor) -> Tensor:
    """`x` times the transposed `weight`, both int8, as int32 or as floats of the same value."""
    takes_sizes = all(n % MULTIPLE == 0 for n in weight.shape)
    if x.is_cuda and takes_sizes and x.shape[0]:
        missing = max(MIN_ROWS - x.shape[0], 0)
        padded = torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x
        return torch._int_mm(padded, weight.t())[: x.shape[0]]
    if x.is_cpu and _has_dot_products() and x.numel():
        return torch._int_mm(x, weight.t())
    return torch.nn.functional.linear(x.float(), weight.float())


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_dot_products() -> bool:
    return bool(torch.cpu._is_vnni_supported())
