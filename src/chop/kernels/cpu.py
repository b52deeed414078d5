"""CPU back end: `cpu.cpp`, built at first use, or the PyTorch reference."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from chop import native
from chop.kernels import reference
from chop.kernels.packed_formats import KERNEL_CODES

SOURCE = Path(__file__).with_name("cpu.cpp")
MAX_BATCH = 64
"""Most rows of activations; for more, unpacking slices and the BLAS are faster."""
GRAIN = 1 << 15
"""Weight elements per thread."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the built kernels, None if they cannot be built."""
    built = native.load(SOURCE, native.openmp_flags())
    if built is None:
        return None
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    built.mase_unpack.argtypes = [number, *[pointer] * 3, *[size] * 3, number, number]
    built.mase_packed_linear.argtypes = [number, *[pointer] * 4, *[size] * 4, number, number]
    built.mase_add_offsets.argtypes = [*[pointer] * 3, *[size] * 4, number]
    built.mase_unpack.restype, built.mase_packed_linear.restype = None, number
    built.mase_add_offsets.restype = None
    return built


def _threads(elements: int) -> int:
    return min(torch.get_num_threads(), elements // GRAIN + 1)


def unpack(
    codes: Tensor, scales: Tensor, format: str, group_size: int, columns: int, dtype: torch.dtype
) -> Tensor:
    """See `reference.unpack`."""
    built = library()
    if built is None:
        return reference.unpack(codes, scales, format, group_size, columns, dtype)
    kind = dtype if dtype in (torch.float32, torch.bfloat16) else torch.float32
    out = torch.empty((*codes.shape[:-1], columns), dtype=kind)
    if out.numel():
        codes, scales = codes.contiguous(), scales.contiguous()
        built.mase_unpack(
            KERNEL_CODES[format], codes.data_ptr(), scales.data_ptr(), out.data_ptr(),
            out.numel() // columns, columns, group_size, kind == torch.bfloat16,
            _threads(out.numel()),
        )  # fmt: skip
    return out.to(dtype)


def linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Tensor:
    """See `reference.linear`."""
    y = _product(x, codes, scales, bias, format, group_size, rounds=False)
    return reference.linear(x, codes, scales, bias, format, group_size) if y is None else y


def rounded_linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Tensor | None:
    """Return `linear` of `x` rounded to MXINT8 in blocks of 32; None without a kernel."""
    return _product(x, codes, scales, bias, format, group_size, rounds=True)


def add_offsets(y: Tensor, x: Tensor, offsets: Tensor, group_size: int) -> bool:
    """Add the product of `x` with a weight of one offset per group to `y`; False if it cannot."""
    built, columns = library(), x.shape[-1]
    batch = x.numel() // max(columns, 1)
    is_float = all(t.dtype is torch.float32 and t.is_contiguous() for t in (x, y, offsets))
    if built is None or not is_float or not 0 < batch <= MAX_BATCH:
        return False
    rows = offsets.shape[0]
    built.mase_add_offsets(
        x.data_ptr(), offsets.data_ptr(), y.data_ptr(), batch, rows, columns, group_size,
        _threads(rows * columns),
    )  # fmt: skip
    return True


def _product(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int,
    *, rounds: bool,
) -> Tensor | None:  # fmt: skip
    built, columns = library(), x.shape[-1]
    batch = x.numel() // max(columns, 1)
    if built is None or not 0 < batch <= MAX_BATCH or x.dtype == torch.float64:
        return None
    is_float, rows = x.dtype is torch.float32, codes.shape[0]
    wide = x if is_float and x.is_contiguous() else x.float().contiguous()
    codes, scales = codes.contiguous(), scales.contiguous()
    y = torch.empty((*x.shape[:-1], rows), dtype=torch.float32)
    is_done = built.mase_packed_linear(
        KERNEL_CODES[format], wide.data_ptr(), codes.data_ptr(), scales.data_ptr(), y.data_ptr(),
        batch, rows, columns, group_size, rounds, _threads(rows * columns),
    )  # fmt: skip
    if not is_done:
        return None
    y = y if bias is None else y.add_(bias)
    return y if is_float else y.to(x.dtype)  # skips a call: even no-ops take time
