"""Normalisation and rotation of rows: `rows.cpp` on the CPU, torch's function on a GPU.

With gradients or a compiler, the PyTorch definition runs.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from chop import native
from chop.ir.ops import OPS
from chop.kernels.ops import PLAIN
from chop.nn.quantizers.kernels import is_traced

SOURCE = Path(__file__).with_name("rows.cpp")


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the built kernels, None if they cannot be built."""
    built = native.load(SOURCE)
    if built is None:
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    built.mase_rms_norm.argtypes = [pointer, pointer, pointer, size, size, ctypes.c_float]
    built.mase_rotate.argtypes = [pointer] * 5
    built.mase_rms_norm.restype = built.mase_rotate.restype = None
    return built


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor, eps: float = 1e-6
) -> Tensor:
    """Return `input` over its root mean square along the last dimension, times `weight`.

    The quotient is computed in float32 and rounded to the type of `input`.

    >>> rms_norm(torch.tensor([[3.0, 3.0]]), (2,), torch.tensor([1.0, 2.0])).round(decimals=3)
    tensor([[1., 2.]])
    """
    if has_torch_function((input, weight)):
        arguments = (input, normalized_shape, weight, eps)
        return handle_torch_function(rms_norm, (input, weight), *arguments)
    if not _may_run(input, weight):
        wide = input.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * normed.to(input.dtype)
    if input.is_cuda:
        return F.rms_norm(input, list(normalized_shape), weight, eps)
    built, y = library(), torch.empty_like(input)
    assert built is not None, "called only where the library is built"
    n = input.shape[-1]
    pointers = (input.data_ptr(), weight.data_ptr(), y.data_ptr())
    built.mase_rms_norm(*pointers, input.numel() // max(n, 1), n, eps)
    return y


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` by the angles of `cos` and `sin`: pairs are half of the last dimension apart.

    >>> rotate(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]))
    tensor([-2.,  1.])
    """
    if has_torch_function((x, cos, sin)):
        return handle_torch_function(rotate, (x, cos, sin), x, cos, sin)
    if not (_may_run(x, cos, sin) and _can_rotate(x, cos, sin)):
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + turned * sin
    built, y = library(), torch.empty(x.shape)
    assert built is not None, "called only where the library is built"
    table = (cos.stride(0) if cos.shape[0] > 1 else 0, cos.stride(2))
    sizes = (ctypes.c_int64 * 9)(*x.shape, *x.stride()[:3], *table)
    built.mase_rotate(sizes, x.data_ptr(), cos.data_ptr(), sin.data_ptr(), y.data_ptr())
    return y


rms_norm.op = OPS["rms_norm"]  # type: ignore[attr-defined]
rotate.op = OPS["rotary"]  # type: ignore[attr-defined]


def _may_run(first: Tensor, *others: Tensor) -> bool:
    """Return True if a kernel accepts these operands, without gradients or tracing."""
    if torch.compiler.is_compiling():
        return False
    tensors = (first, *others)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    if any(type(t) not in PLAIN or t.device != first.device for t in tensors) or is_traced(first):
        return False
    if first.is_cuda:
        return len(others) == 1 and others[0].dtype == first.dtype
    is_known = first.is_cpu and all(t.dtype == torch.float32 for t in tensors)
    is_plain = len(others) == 2 or all(t.is_contiguous() for t in tensors)
    return is_known and is_plain and not torch.is_autocast_enabled("cpu") and library() is not None


def _can_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Return True if `x` is heads of tokens, and the tables have an angle per token."""
    if not (x.dim() == 4 and cos.dim() == 4 and x.is_cpu and x.shape[-1] % 2 == 0):
        return False
    batch, _, tokens, size = x.shape
    fits = cos.shape[1:] == (1, tokens, size) and cos.shape[0] in (1, batch)
    fits = fits and sin.shape == cos.shape and sin.stride() == cos.stride()
    return fits and x.stride(3) == 1 and cos.stride(3) == 1
