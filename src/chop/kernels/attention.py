"""Attention: own kernels for float32 on the CPU and for few queries on a GPU, else torch's."""

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
"""Round a product and its sum once, at half the cost."""
LEAST_QUERIES = 32
"""Fewest queries; with fewer, torch is faster than copying keys and values."""
LEAST_WORK = 1 << 22
"""Fewest multiplications of a product; with fewer, torch is faster."""
MOST_ROWS = 64
"""Most query heads that share keys, times queries, on a GPU: they are one tile."""
MOST_SIZE = 256
GPU_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HAS_TRITON = importlib.util.find_spec("triton") is not None
MASK_KINDS = {torch.float32: 1, torch.bool: 2}
"""Numbers in `attention.cpp`."""

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
    """Return `softmax(query @ key.mT * scale + attn_mask) @ value`, as torch's function does.

    Without gradients it runs our kernels for float32 on the CPU, and for few queries on a GPU.
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
    if enable_gqa and mask is not None:  # torch would write out all scores
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, 1) if group > 1 else x for x in (key, value))
        enable_gqa = False
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _may_run(tensors: tuple[Tensor, ...]) -> bool:
    """Return True without gradients, exports and autocast, which only torch's function has."""
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
    # evaluated outside the compiler of torch 2.11, which always answers True
    return torch.compiler.is_exporting()


def _fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_grouped: bool) -> bool:
    """Return True if a kernel accepts these operands and is faster."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    batch, heads, queries, size = query.shape
    key_heads, keys, value_size = key.shape[1], key.shape[2], value.shape[3]
    fits = key.shape == (batch, key_heads, keys, size)
    fits = fits and value.shape == (batch, key_heads, keys, value_size)
    fits = fits and (heads == key_heads or (is_grouped and heads % max(key_heads, 1) == 0))
    plain = all(_is_plain(x, query.device) and x.stride(3) == 1 for x in (query, key, value))
    fits = fits and plain
    if mask is not None:
        shape = (batch, heads, queries, keys)[4 - mask.dim() :] if mask.dim() <= 4 else ()
        sizes_fit = len(shape) == mask.dim() and all(
            n in (1, full) for n, full in zip(mask.shape, shape, strict=True)
        )
        fits = fits and _is_plain(mask, query.device) and sizes_fit
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


def _is_plain(x: Tensor, device: torch.device) -> bool:
    return type(x) in PLAIN and x.device == device and x.layout == torch.strided


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the built kernel, None if it cannot be built."""
    built = native.load(SOURCE, (*native.openmp_flags(), CONTRACTS))
    if built is None:
        return None
    built.mase_attention.argtypes = [*[ctypes.c_void_p] * 6, ctypes.c_float]
    built.mase_attention.restype = None
    return built


def run(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """Run the kernel on operands that fit."""
    if query.is_cuda:
        from chop.kernels import attention_gpu  # only where Triton is

        return attention_gpu.run(query, key, value, mask, _mask_strides(mask), is_causal, scale)
    built = library()
    assert built is not None, "attention: there is no library to run"
    batch, heads, queries, _ = query.shape
    out = torch.empty((batch, queries, heads, value.shape[3]), dtype=torch.float32)
    of_batch, of_token, of_head, _ = out.stride()
    numbers = (
        *query.shape[:2], key.shape[1], queries, key.shape[2], query.shape[3], value.shape[3],
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], of_batch, of_head, of_token,
        *_mask_strides(mask), 0 if mask is None else MASK_KINDS[mask.dtype],
        is_causal, torch.get_num_threads(),
    )  # fmt: skip
    problem = (ctypes.c_int64 * len(numbers))(*numbers)  # the struct `Problem` of `attention.cpp`
    built.mase_attention(
        problem, query.data_ptr(), key.data_ptr(), value.data_ptr(),
        None if mask is None else mask.data_ptr(), out.data_ptr(), scale,
    )  # fmt: skip
    return out.transpose(1, 2)  # `transpose(1, 2).flatten(2)` of it copies nothing


def _mask_strides(mask: Tensor | None) -> tuple[int, ...]:
    """Return the strides of batch, head, query and key; 0 for sizes of one."""
    if mask is None:
        return (0, 0, 0, 0)
    own = [0 if n == 1 else step for n, step in zip(mask.shape, mask.stride(), strict=True)]
    return (*[0] * (4 - mask.dim()), *own)


def _run_checked(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """Run the kernel or torch's function; torch.compile may have changed the strides."""
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
