"""Operators over whole dimensions: sums, matrix products, losses, pooling."""

from __future__ import annotations

import functools
import math
import operator as python
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.export.onnx_import.call import Call, check_made, operator, register_operators
from chop.export.onnx_import.host_values import Ints

Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((a % x.dim() for a in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keep)
    return x


REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": lambda x, axes, keep: torch.sum(torch.abs(x), axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: torch.sqrt(torch.sum(x * x, axes, keepdim=keep)),
    "ReduceLogSum": lambda x, axes, keep: torch.log(torch.sum(x, axes, keepdim=keep)),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: torch.amax(x, axes, keepdim=keep),
    "ReduceMean": lambda x, axes, keep: torch.mean(x, axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: torch.amin(x, axes, keepdim=keep),
    "ReduceProd": _prod,
    "ReduceSum": lambda x, axes, keep: torch.sum(x, axes, keepdim=keep, dtype=x.dtype),
    "ReduceSumSquare": lambda x, axes, keep: torch.sum(x * x, axes, keepdim=keep, dtype=x.dtype),
}
OF_NUMBERS: dict[str, Callable[[list[Any]], Any]] = {
    "ReduceMax": max,
    "ReduceMin": min,
    "ReduceProd": lambda values: functools.reduce(python.mul, values, 1),
    "ReduceSum": lambda values: functools.reduce(python.add, values, 0),
}


@operator(*REDUCTIONS)
def _reduce(call: Call) -> Any:
    name = call.node.operator
    axes, keep = call.option("axes", 1), bool(call.attribute("keepdims", 1))
    if call.is_host(0) and name in OF_NUMBERS:
        result = OF_NUMBERS[name](call.numbers(0))
        return Ints([result]) if keep else result
    x = call.tensor(0)
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return x
    return REDUCTIONS[name](x, axes or list(range(x.dim())), keep) if x.dim() else x


@operator("ArgMax", "ArgMin")
def _arg_extreme(call: Call) -> Any:
    x, axis = call.tensor(0), call.attribute("axis", 0)
    function = torch.argmax if call.node.operator == "ArgMax" else torch.argmin
    keep = bool(call.attribute("keepdims", 1))
    if call.attribute("select_last_index", 0):
        return x.shape[axis] - 1 - function(torch.flip(x, [axis]), axis, keepdim=keep)
    return function(x, axis, keepdim=keep)


@operator("TopK")
def _top_k(call: Call) -> Any:
    count = call.option("k", 1)
    count = count[0] if isinstance(count, list) else count
    is_largest = bool(call.attribute("largest", 1))
    axis = call.attribute("axis", -1)
    # of equal values the first: topk may return any
    values, places = torch.sort(call.tensor(0), dim=axis, descending=is_largest, stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


@operator("CumSum")
def _cum_sum(call: Call) -> Any:
    x, axis = call.tensor(0), call.number(1)
    is_back = bool(call.attribute("reverse", 0))
    x = torch.flip(x, [axis]) if is_back else x
    sums = torch.cumsum(x, axis, dtype=x.dtype)
    sums = sums - x if call.attribute("exclusive", 0) else sums
    return torch.flip(sums, [axis]) if is_back else sums


register_operators(
    {
        "MatMul": lambda call: torch.matmul(call.tensor(0), call.tensor(1)),
        "Einsum": lambda call: torch.einsum(
            call.attribute("equation"), *(call.tensor(i) for i in range(call.count))
        ),
    }
)


@operator("Gemm")
def _gemm(call: Call) -> Any:
    a, b = call.tensor(0), call.tensor(1)
    a = a.t() if call.attribute("transA", 0) else a
    b = b.t() if call.attribute("transB", 0) else b
    product = torch.matmul(a, b) * call.attribute("alpha", 1.0)
    return product + call.tensor(2) * call.attribute("beta", 1.0) if call.given(2) else product


@operator("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _cross_entropy(call: Call) -> Any:
    settings: dict[str, Any] = {
        "weight": call.optional(2),
        "ignore_index": call.attribute("ignore_index", -100),
        "reduction": call.attribute("reduction", "mean"),
    }
    x, labels = call.tensor(0), call.tensor(1)
    if call.node.operator.startswith("Negative"):
        return F.nll_loss(x, labels, **settings)
    loss = F.cross_entropy(x, labels, **settings)
    return (loss, F.log_softmax(x, 1)) if len(call.node.outputs) > 1 else loss


@operator("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(call: Call) -> Any:
    x = call.tensor(0)
    axes = list(range(2, x.dim()))
    is_max = call.node.operator == "GlobalMaxPool"
    return torch.amax(x, axes, keepdim=True) if is_max else torch.mean(x, axes, keepdim=True)


def paddings(call: Call, x: Tensor, kernel: list[int], stride: list[int]) -> list[tuple[int, int]]:
    """Return the padding before and after each spatial dimension."""
    rank, auto = len(kernel), call.attribute("auto_pad", "NOTSET")
    spread = call.attribute("dilations", [1] * rank)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        is_open = varies(call, stride)
        reaches = [(k - 1) * d + 1 for k, d in zip(kernel, spread, strict=True)]
        lacks = [_lack(*each, is_open) for each in zip(x.shape[2:], reaches, stride, strict=True)]
        pads = [(lack // 2, lack - lack // 2) for lack in lacks]
        return pads if auto == "SAME_UPPER" else [pair[::-1] for pair in pads]
    flat = call.attribute("pads", [0] * 2 * rank) if auto == "NOTSET" else [0] * 2 * rank
    if len(flat) != 2 * rank or min(flat) < 0 or max(flat) > 1 << 20:
        raise ValueError(f"pads {flat[:8]}")
    return [(flat[i], flat[i + rank]) for i in range(rank)]


def _lack(size: Any, reach: int, stride: int, is_open: bool) -> Any:
    """Return the padding for ceil(size / stride) outputs, without a branch on an open size."""
    if stride == 1:
        return reach - 1
    size = size if is_open else int(size)
    lack = (-(-size // stride) - 1) * stride + reach - size
    return lack if reach >= stride else (lack + abs(lack)) // 2  # the larger of it and 0


def is_even(call: Call, stride: list[int], pads: list[tuple[int, int]]) -> bool:
    """Return True if every dimension has the same padding on both sides, at all sizes."""
    return not varies(call, stride) and all(low == high for low, high in pads)


def varies(call: Call, stride: list[int]) -> bool:
    """Return True if the padding depends on sizes that the file leaves open."""
    is_auto = call.attribute("auto_pad", "NOTSET").startswith("SAME")
    return is_auto and call.scope.has_open_sizes and any(s != 1 for s in stride)


def padded(x: Tensor, pads: list[tuple[int, int]], value: float = 0.0) -> Tensor:
    """Pad `x` with `value`."""
    flat = [p for pair in reversed(pads) for p in pair]
    check_made(math.prod(s + sum(p) for s, p in zip(x.shape[2:], pads, strict=True)))
    is_fixed = all(type(p) is int for p in flat)
    return x if is_fixed and not any(flat) else F.pad(x, flat, value=value)


@operator("MaxPool")
def _max_pool(call: Call) -> Any:
    if len(call.node.outputs) > 1:
        raise ValueError("its second output, the places of the maxima, is not read")
    x, kernel = call.tensor(0), call.attribute("kernel_shape")
    rank = len(kernel)
    stride = call.attribute("strides", [1] * rank)
    pads = paddings(call, x, kernel, stride)
    settings = {
        "stride": stride,
        "dilation": call.attribute("dilations", [1] * rank),
        "ceil_mode": bool(call.attribute("ceil_mode", 0)),
    }
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    fits = is_even(call, stride, pads) and all(
        2 * p[0] <= k for p, k in zip(pads, kernel, strict=True)
    )
    if fits:
        return function(x, kernel, padding=[p[0] for p in pads], **settings)
    return function(padded(x, pads, -math.inf), kernel, **settings)


@operator("AveragePool")
def _average_pool(call: Call) -> Any:
    x, kernel = call.tensor(0), call.attribute("kernel_shape")
    rank = len(kernel)
    stride = call.attribute("strides", [1] * rank)
    pads, counts = paddings(call, x, kernel, stride), bool(call.attribute("count_include_pad", 0))
    if any(d != 1 for d in call.attribute("dilations", [1] * rank)):
        raise ValueError("dilations other than 1")
    function: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    settings = {"stride": stride, "ceil_mode": bool(call.attribute("ceil_mode", 0))}
    is_small = all(2 * p[0] <= k for p, k in zip(pads, kernel, strict=True))
    if is_even(call, stride, pads) and is_small:
        sides = [p[0] for p in pads]
        return function(x, kernel, padding=sides, count_include_pad=counts, **settings)
    means = function(padded(x, pads), kernel, **settings)
    if counts:
        return means
    return means / function(padded(torch.ones_like(x), pads), kernel, **settings)
