"""Attention in one call: kernels of our own for float32 on the CPU and for few queries on a GPU,
torch's everywhere else."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from chop import native
from chop.ir.ops import OPS
from chop.kernels.ops import PLAIN
from chop.nn.quantizers.kernels import assume_constant_result, is_traced

SOURCE = Path(__file__).with_name("attention.cpp")
CONTRACTS = "-ffp-contract=fast"
"""Products and sums are rounded once, which costs half as much."""
LEAST_QUERIES = 32
"""With fewer, copying keys and values does not pay, and torch's kernel is faster."""
LEAST_WORK = 1 << 22
"""With fewer multiplications in a product torch is faster, because it starts sooner."""
MOST_ROWS = 64
"""On a GPU: query heads that share keys, times queries, at most: they are one tile."""
MOST_SIZE = 256
GPU_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HAS_TRITON = importlib.util.find_spec("triton") is not None
MASK_KINDS = {torch.float32: 1, torch.bool: 2}
"""As in `attention.cpp`."""

_operators = torch.library.Library("mase", "FRAGMENT")
_operators.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, "
    "float scale) -> Tensor"
)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`softmax(query @ key.mT * scale + attn_mask) @ value`, as torch's function of this name.

    Where no gradient is asked for it runs our kernels: for float32 on the CPU, and on a GPU for few
    queries, as in decoding. Otherwise it is torch's function.
    """
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    if has_torch_function(tensors):
        return handle_torch_function(
            scaled_dot_product_attention, tensors, query, key, value, attn_mask, dropout_p,
            is_causal, **options,
        )  # fmt: skip
    is_plain = dropout_p == 0.0 and not (is_causal and attn_mask is not None)
    if not (is_plain and _fits(query, key, value, attn_mask, enable_gqa) and _may_run(tensors)):
        return _torch_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    kernel = torch.ops.mase.attention.default if torch.compiler.is_compiling() else run
    return kernel(query, key, value, attn_mask, is_causal, factor)


scaled_dot_product_attention.op = OPS["scaled_dot_product_attention"]  # type: ignore[attr-defined]


def _torch_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """torch's function; which with groups and a mask writes out all scores, unless keys and values
    are repeated for it."""
    if enable_gqa and mask is not None:
        group = query.shape[1] // key.shape[1]
        key, value = _repeated(key, group), _repeated(value, group)
        enable_gqa = False
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _repeated(x: Tensor, times: int) -> Tensor:
    """Each head `times` times."""
    if times == 1:
        return x
    batch, heads, length, size = x.shape
    every = x[:, :, None].expand(batch, heads, times, length, size)
    return every.reshape(batch, heads * times, length, size)


def _may_run(tensors: tuple[Tensor, ...]) -> bool:
    """Whether nobody asks for what only torch's function gives: gradients, exports, casts."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device):
        return False
    if torch.compiler.is_compiling():
        return not _is_exporting()
    return not any(map(is_traced, tensors)) and (device != "cpu" or library() is not None)


@assume_constant_result
def _is_exporting() -> bool:
    """Asked outside the compiler: that of torch 2.11 answers yes whatever it does."""
    return torch.compiler.is_exporting()


def _fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_grouped: bool) -> bool:
    """Whether a kernel takes these operands, and is faster."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    batch, heads, queries, size = query.shape
    key_heads, keys, value_size = key.shape[1], key.shape[2], value.shape[3]
    fits = key.shape == (batch, key_heads, keys, size)
    fits = fits and value.shape == (batch, key_heads, keys, value_size)
    fits = fits and (heads == key_heads or (is_grouped and heads % max(key_heads, 1) == 0))
    fits = fits and all(_is_readable(x, query.device) for x in (query, key, value))
    if mask is not None:
        fits = fits and _fits_mask(mask, query.device, (batch, heads, queries, keys))
    suits = _is_for_cpu if query.is_cpu else _is_for_gpu
    return fits and suits(query, key, value, mask)


def _is_for_cpu(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    batch, heads, queries, size = query.shape
    work = batch * heads * queries * key.shape[2] * min(size, value.shape[3])
    is_large = queries >= LEAST_QUERIES and work >= LEAST_WORK
    is_known = all(x.dtype == torch.float32 for x in (query, key, value))
    return is_large and is_known and (mask is None or mask.dtype in MASK_KINDS)


def _is_for_gpu(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    group = query.shape[1] // max(key.shape[1], 1)
    is_small = group * query.shape[2] <= MOST_ROWS and query.shape[3] <= MOST_SIZE
    is_small = is_small and value.shape[3] <= MOST_SIZE
    is_known = query.dtype in GPU_DTYPES and query.dtype == key.dtype == value.dtype
    is_known = is_known and (mask is None or mask.dtype in (torch.bool, *GPU_DTYPES))
    has_work = query.numel() > 0 and key.numel() > 0 and value.numel() > 0
    return query.is_cuda and is_small and is_known and has_work and HAS_TRITON


def _is_readable(x: Tensor, device: torch.device) -> bool:
    is_plain = type(x) in PLAIN and x.device == device and x.layout == torch.strided
    return is_plain and x.stride(3) == 1


def _fits_mask(mask: Tensor, device: torch.device, shape: tuple[int, ...]) -> bool:
    is_plain = type(mask) in PLAIN and mask.device == device and mask.layout == torch.strided
    if not is_plain:
        return False
    missing = len(shape) - mask.dim()
    return missing >= 0 and all(
        given in (1, wanted) for given, wanted in zip(mask.shape, shape[missing:], strict=True)
    )


# -- the kernel ------------------------------------------------------------------------------


@functools.cache
def library() -> ctypes.CDLL | None:
    """The built kernel, or None where it cannot be built."""
    built = native.load(SOURCE, (*native.openmp_flags(), CONTRACTS))
    if built is None:
        return None
    built.mase_attention.argtypes = [*[ctypes.c_void_p] * 6, ctypes.c_float]
    built.mase_attention.restype = None
    return built


def run(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """The kernel, which has to be there, on operands that are known to fit."""
    if query.is_cuda:
        from chop.kernels import attention_gpu  # only where Triton is

        return attention_gpu.run(query, key, value, mask, _mask_strides(mask), is_causal, scale)
    built = library()
    assert built is not None, "attention: there is no library to run"
    batch, heads, queries, _ = query.shape
    out = torch.empty((batch, queries, heads, value.shape[3]), dtype=torch.float32)
    problem = _problem(query, key, value, mask, is_causal, out)
    built.mase_attention(
        problem, query.data_ptr(), key.data_ptr(), value.data_ptr(),
        None if mask is None else mask.data_ptr(), out.data_ptr(), scale,
    )  # fmt: skip
    return out.transpose(1, 2)  # `transpose(1, 2).flatten(2)` of it copies nothing


def _problem(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, out: Tensor
) -> ctypes.Array[ctypes.c_int64]:
    """The struct `Problem` of `attention.cpp`."""
    batch, heads, queries, size = query.shape
    _, key_heads, keys, _ = key.shape
    of_batch, of_token, of_head, _ = out.stride()
    numbers = (
        batch, heads, key_heads, queries, keys, size, value.shape[3],
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], of_batch, of_head, of_token,
        *_mask_strides(mask), 0 if mask is None else MASK_KINDS[mask.dtype],
        is_causal, torch.get_num_threads(),
    )  # fmt: skip
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _mask_strides(mask: Tensor | None) -> tuple[int, ...]:
    """Of batch, head, query and key; 0 where there is only one."""
    if mask is None:
        return (0, 0, 0, 0)
    own = [0 if n == 1 else step for n, step in zip(mask.shape, mask.stride(), strict=True)]
    return (*[0] * (4 - mask.dim()), *own)


# -- the operator ----------------------------------------------------------------------------


def _run_checked(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """The kernel on any operands: torch.compile may have laid them out anew."""
    is_one_mask = mask is None or not is_causal
    is_there = query.is_cuda or library() is not None
    if is_one_mask and is_there and _fits(query, key, value, mask, True):
        return run(query, key, value, mask, is_causal, scale)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": True}
    result = _torch_attention(query, key, value, mask, 0.0, is_causal, **options)
    return _fake(query, key, value).copy_(result)


def _fake(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> Tensor:
    batch, heads, queries, _ = query.shape
    return query.new_empty((batch, queries, heads, value.shape[3])).transpose(1, 2)


for _device in ("CPU", "CUDA"):
    _operators.impl("attention", _run_checked, _device)
torch.library.register_fake("mase::attention", _fake, lib=_operators)
