"""A root-mean-square norm, rounded to `ROUNDED`, with an optional sum before it.

On a GPU this is one launch between two products of a decoder.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from chop import nvrtc
from chop.ir.ops import OPS
from chop.kernels.ops import PLAIN, ROUNDED, operators
from chop.kernels.rows import rms_norm
from chop.nn.quantizers import gpu_formats
from chop.nn.quantizers.kernels import NAMES, ROUNDINGS, Kernel, can_call, is_traced

BLOCK = ROUNDED.tile[1]
SETTINGS = cast(Kernel, ROUNDED.kernel())
MOST_THREADS, MOST_VECTORS = 1024, 8
"""Threads per row and vectors per thread: both stay in registers."""

operators.define(
    "rounded_rms_norm(Tensor x, Tensor? residual, Tensor weight, float eps) -> (Tensor, Tensor)"
)


def rounded_rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor, eps: float = 1e-6
) -> Tensor:
    """Return `rows.rms_norm`, rounded to `ROUNDED`.

    >>> rounded_rms_norm(torch.tensor([[3.0, 3.0]]), (2,), torch.tensor([1.0, 0.3]))
    tensor([[0.9922, 0.2969]])
    """
    if has_torch_function((input, weight)):
        arguments = (input, normalized_shape, weight, eps)
        return handle_torch_function(rounded_rms_norm, (input, weight), *arguments)
    if _has_kernel(input, weight):
        return _run(input, None, weight, eps)[1]
    return ROUNDED(rms_norm(input, normalized_shape, weight, eps))


def add_rounded_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Return the sum of two tensors, and its `rounded_rms_norm`."""
    tensors = (input, residual, weight)
    if has_torch_function(tensors):
        arguments = (input, residual, normalized_shape, weight, eps)
        return handle_torch_function(add_rounded_rms_norm, tensors, *arguments)
    if input.shape == residual.shape and _has_kernel(input, residual, weight):
        return _run(input, residual, weight, eps)
    total = input + residual
    return total, ROUNDED(rms_norm(total, normalized_shape, weight, eps))


rounded_rms_norm.op = OPS["rounded_rms_norm"]  # type: ignore[attr-defined]
add_rounded_rms_norm.op = OPS["add_rounded_rms_norm"]  # type: ignore[attr-defined]


def _has_kernel(input: Tensor, *others: Tensor) -> bool:
    """Return True if the GPU kernel accepts these operands, without gradients or tracing."""
    tensors = (input, *others)
    if not input.is_cuda or not all(t.dtype == input.dtype and t.is_cuda for t in others):
        return False
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    columns = others[-1].shape[-1]
    lanes = columns * input.element_size() // gpu_formats.BYTES_AT_ONCE
    fits = columns % BLOCK == 0 and lanes <= MOST_THREADS * MOST_VECTORS
    fits = fits and input.dim() > 0 and input.shape[-1] == columns and input.numel() > 0
    if torch.compiler.is_compiling():
        return fits and can_call(input)
    is_plain = all(type(t) in PLAIN and t.device == input.device for t in tensors)
    return (
        fits
        and is_plain
        and input.dtype in gpu_formats.STORED
        and gpu_formats.is_usable(input.device)
    )


def _run(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling() or is_traced(x):
        total, y = torch.ops.mase.rounded_rms_norm(x, residual, weight, eps)
        return total, y
    return _launch(x, residual, weight, eps)


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the sum (empty without a residual) and its rounded norm, in one launch."""
    operands = [_aligned(t) for t in (x, residual, weight) if t is not None]
    y = torch.empty_like(operands[0])
    total = torch.empty_like(y) if residual is not None else y.new_empty(0)
    columns = weight.shape[-1]
    function, threads = _kernel(x.device, x.dtype, columns, residual is not None)
    has = [operands[0], operands[1] if residual is not None else None, operands[-1], total, y]
    pointers = [c_void_p(None if t is None else t.data_ptr()) for t in has]
    values = (c_float * 8)(*SETTINGS.parameters)
    grid = (y.numel() // columns, 1, 1)
    with nvrtc.made_current(x.device):
        arguments = [*pointers, c_int64(columns), c_float(eps), values]
        function.launch(grid, threads, nvrtc.raw_stream(x.device), arguments)
    return total, y


def _aligned(x: Tensor) -> Tensor:
    """Return `x`, or a copy that is aligned for vector reads."""
    x = x.contiguous()
    return x if x.data_ptr() % gpu_formats.BYTES_AT_ONCE == 0 else x.clone()


@functools.cache
def _kernel(
    device: torch.device, dtype: torch.dtype, columns: int, has_residual: bool
) -> tuple[nvrtc.Function, int]:
    """Return the compiled kernel for rows of this length, and the threads per row."""
    vectors = columns * dtype.itemsize // gpu_formats.BYTES_AT_ONCE
    threads = min(MOST_THREADS, -(-vectors // 32) * 32)
    image = nvrtc.compile_cuda(
        source(), defines(dtype, vectors, threads, has_residual), nvrtc.architecture(device)
    )
    with nvrtc.made_current(device):
        return nvrtc.Function(image, "rounded_norm"), threads


def defines(
    dtype: torch.dtype, vectors: int, threads: int, has_residual: bool
) -> dict[str, int | str]:
    """Return the constants of the kernel for rows of `vectors` vectors."""
    vector = gpu_formats.BYTES_AT_ONCE // dtype.itemsize
    return {
        "FORMAT": gpu_formats.FORMATS[NAMES.index(SETTINGS.name)],
        "ROUNDING": ROUNDINGS.index(SETTINGS.rounding),
        "STORED": gpu_formats.STORED[dtype],
        "VECTOR": vector,
        "LANES": BLOCK // vector,
        "IS_WHOLE": 1,
        "THREADS": threads,
        "PER_THREAD": -(-vectors // threads),
        "HAS_RESIDUAL": int(has_residual),
    }


def source() -> str:
    """Return the source of the kernel, after that of the number formats."""
    return "\n".join((gpu_formats.source(), Path(__file__).with_suffix(".cu").read_text()))


def _defined(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    total = x if residual is None else x + residual
    y = ROUNDED(rms_norm(total, weight.shape, weight, eps))
    return (x.new_empty(0) if residual is None else total), y


def _fake(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return (x.new_empty(0) if residual is None else torch.empty_like(y)), y


operators.impl("rounded_rms_norm", _launch, "CUDA")
operators.impl("rounded_rms_norm", _defined, "CPU")
torch.library.register_fake("mase::rounded_rms_norm", _fake, lib=operators)
