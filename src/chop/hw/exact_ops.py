"""What each op computes, by its definition, in exact arithmetic.

Add an op: a function of the call's arguments by name, under the op's name in `EXACT_OPS`, and the
order of its positional arguments in `ARGUMENTS`. Nothing here may be shared with the lowering or
with the golden models: this is what they are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from chop.errors import HardwareError
from chop.hw.exact import Codes, Exact, constant, fitted, product, reach

Arguments = Mapping[str, Any]
"""Of a call: operands and parameters are `Exact`, settings are as torch has them."""
ExactOp = Callable[[Arguments], Exact]

_CONV = "input weight bias stride padding dilation groups padding_mode"
ARGUMENTS: dict[str, tuple[str, ...]] = {
    name: tuple(names.split())
    for name, names in {
        "linear": "input weight bias",
        "conv1d": _CONV,
        "conv2d": _CONV,
        "batch_norm1d": "input running_mean running_var weight bias training momentum eps",
        "batch_norm2d": "input running_mean running_var weight bias training momentum eps",
        "max_pool2d": "input kernel_size stride padding dilation ceil_mode return_indices",
        "avg_pool2d": "input kernel_size stride padding ceil_mode count_include_pad "
        "divisor_override",
        "adaptive_avg_pool2d": "input output_size",
        "relu": "input inplace",
        "leaky_relu": "input negative_slope inplace",
        "hardsigmoid": "input inplace",
        "hardswish": "input inplace",
        "sigmoid": "input",
        "tanh": "input",
        "gelu": "input approximate",
        "silu": "input inplace",
        "elu": "input alpha inplace",
        "mish": "input inplace",
        "softplus": "input beta threshold",
        "softsign": "input",
        "add": "input other alpha",
        "sub": "input other alpha",
        "mul": "input other",
    }.items()
}
"""Positional arguments, and the attributes of the layers, by op."""


def _linear(a: Arguments) -> Exact:
    return _with_bias(product(a["input"], a["weight"]), a.get("bias"), -1)


def _with_bias(x: Exact, bias: Exact | None, axis: int) -> Exact:
    return x if bias is None else x + _along(bias, axis, len(x.shape))


def _along(x: Exact, axis: int, dims: int) -> Exact:
    """A vector whose numbers belong to the indices of one of `dims` dimensions."""
    shape = [1] * dims
    shape[axis] = -1
    return x.take(x.codes.reshape(shape))


def _sizes(value: Any, dims: int) -> list[int]:
    found = list(value) if isinstance(value, Sequence) else [value] * dims
    return [int(v) for v in (found * dims if len(found) == 1 else found)]


def _refuse_setting(name: str, value: Any, allowed: str) -> HardwareError:
    return HardwareError(
        f"{name} = {value}: the exact reference has no such op. Allowed: {allowed}"
    )


def _padded(codes: Codes, padding: Sequence[int], fill: int) -> Codes:
    outer = codes.ndim - len(padding)
    shape = [n + 2 * p for n, p in zip(codes.shape[outer:], padding, strict=True)]
    # not np.pad: among Python's integers it would put NumPy's, which overflow
    padded = np.full((*codes.shape[:outer], *shape), fill, dtype=codes.dtype)
    inner: list[Any] = [slice(p, p + n) for n, p in zip(codes.shape[outer:], padding, strict=True)]
    padded[(..., *inner)] = codes
    return padded


def _shifts(
    codes: Codes, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> dict[tuple[int, ...], Codes]:
    """By offset in the window: what lies there, for every window."""
    sizes = codes.shape[codes.ndim - len(kernel) :]
    counts = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
    ]
    found = {}
    for offset in np.ndindex(*kernel):
        starts = [o * d for o, d in zip(offset, dilation, strict=True)]
        cuts: list[Any] = [
            slice(b, b + s * (c - 1) + 1, s) for b, s, c in zip(starts, stride, counts, strict=True)
        ]
        found[offset] = codes[(..., *cuts)]
    return found


def _convolution(a: Arguments) -> Exact:
    x, weight = a["input"], a["weight"]
    dims = len(weight.shape) - 2
    if a.get("groups", 1) != 1:
        raise _refuse_setting("groups", a["groups"], "groups = 1")
    if isinstance(a.get("padding", 0), str) or a.get("padding_mode", "zeros") != "zeros":
        raise _refuse_setting("padding", a.get("padding"), "a number of zeros on each side")
    kernel = weight.shape[2:]
    options = [_sizes(a.get(name, 1), dims) for name in ("stride", "dilation")]
    padded = _padded(x.codes, _sizes(a.get("padding", 0), dims), 0)
    parts = _shifts(padded, kernel, *options)
    # (batch, channels, …) at each offset -> (batch, …, channels * offsets), as the weight's rows
    columns = np.stack([np.moveaxis(part, 1, -1) for part in parts.values()], axis=-1)
    rows = x.take(columns.reshape(*columns.shape[:-2], -1))
    matrix = weight.take(weight.codes.reshape(weight.shape[0], -1))
    sums = product(rows, matrix)
    return _with_bias(sums.take(np.moveaxis(sums.codes, -1, 1)), a.get("bias"), 1)


SQRT_BITS = 240
"""Fractional bits to which the root of a variance is taken: no rounding is closer than this."""


def _inverse_roots(variance: Exact, eps: float) -> Exact:
    """1 / sqrt(variance + eps), to SQRT_BITS bits."""
    found = []
    for index in range(variance.codes.size):
        total = variance.fraction(index) + Fraction(float(eps))
        if total <= 0:
            raise _refuse_setting("running_var + eps", float(total), "more than 0")
        square = (total.denominator << 2 * SQRT_BITS) // total.numerator
        found.append(math.isqrt(square))
    return Exact(np.array(found, dtype=object), SQRT_BITS, 1, is_rounded=True)


def _batch_norm(a: Arguments) -> Exact:
    x, mean, variance = a["input"], a.get("running_mean"), a.get("running_var")
    if mean is None or variance is None or a.get("training"):
        raise _refuse_setting("track_running_stats", False, "running statistics")
    scale = _inverse_roots(variance, a.get("eps", 1e-5))
    scale = scale if a.get("weight") is None else scale * a["weight"]
    dims = len(x.shape)
    centred = x - _along(mean, 1, dims)
    return _with_bias(centred * _along(scale, 1, dims), a.get("bias"), 1)


def _window(a: Arguments) -> tuple[list[int], list[int], list[int]]:
    if a.get("ceil_mode"):
        raise _refuse_setting("ceil_mode", True, "ceil_mode = False")
    kernel = _sizes(a["kernel_size"], 2)
    stride = kernel if a.get("stride") in (None, (), []) else _sizes(a["stride"], 2)
    return kernel, stride, _sizes(a.get("padding", 0), 2)


def _max_pool(a: Arguments) -> Exact:
    x: Exact = a["input"]
    kernel, stride, padding = _window(a)
    lowest = int(x.codes.min()) if x.codes.size else 0  # never above what is in the window
    parts = _shifts(
        _padded(x.codes, padding, lowest), kernel, stride, _sizes(a.get("dilation", 1), 2)
    )
    return x.take(np.maximum.reduce(list(parts.values())))


def _avg_pool(a: Arguments) -> Exact:
    x: Exact = a["input"]
    kernel, stride, padding = _window(a)
    total = _sum_of_parts(x, kernel, stride, padding)
    if a.get("divisor_override"):
        return _divided(total, np.array(int(a["divisor_override"])))
    if a.get("count_include_pad", True):
        return _divided(total, np.array(math.prod(kernel)))
    inside = Exact(np.ones(x.shape[-2:], dtype=np.int64))
    return _divided(total, _sum_of_parts(inside, kernel, stride, padding).codes)


def _sum_of_parts(
    x: Exact, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Exact:
    wide = fitted(x.codes, reach(x.codes) * math.prod(kernel))
    parts = _shifts(_padded(wide, padding, 0), kernel, stride, (1, 1))
    return x.take(sum(parts.values()))  # type: ignore[arg-type]


def _divided(x: Exact, counts: Codes) -> Exact:
    """`x` divided by positive integers that broadcast with it."""
    if int(counts.min()) < 1:
        raise _refuse_setting("divisor", int(counts.min()), "1 or more")
    common = math.lcm(*(int(c) for c in np.unique(counts)))
    factors = np.asarray(common // counts)
    wide = fitted(x.codes, reach(x.codes) * reach(factors))
    return x.take(wide * factors.astype(wide.dtype)) / common


def _adaptive_avg_pool(a: Arguments) -> Exact:
    x: Exact = a["input"]
    given = a["output_size"]
    sizes = list(given) if isinstance(given, Sequence) else [given, given]
    rows, columns = (
        _bands(n, n if wanted is None else int(wanted))
        for n, wanted in zip(x.shape[-2:], sizes, strict=True)
    )
    wide = fitted(x.codes, reach(x.codes) * math.prod(x.shape[-2:]))
    sums = [[wide[..., r, c].sum(axis=(-2, -1)) for c in columns] for r in rows]
    codes = np.stack([np.stack(row, axis=-1) for row in sums], axis=-2)
    counts = [[(r.stop - r.start) * (c.stop - c.start) for c in columns] for r in rows]
    return _divided(x.take(codes), np.array(counts))


def _bands(size: int, count: int) -> list[slice]:
    """The parts of a dimension that adaptive pooling averages."""
    return [slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _relu(a: Arguments) -> Exact:
    x: Exact = a["input"]
    return x.take(np.maximum(x.codes, 0))


def _leaky_relu(a: Arguments) -> Exact:
    x: Exact = a["input"]
    below = x.take(np.minimum(x.codes, 0)) * constant(a.get("negative_slope", 0.01))
    return _relu(a) + below


def _clipped(x: Exact) -> Exact:
    """min(max(x + 3, 0), 6)."""
    moved = x + constant(3.0)
    six = moved.divisor * 6 << moved.frac_width
    return moved.take(np.minimum(np.maximum(moved.codes, 0), six))


def _hardsigmoid(a: Arguments) -> Exact:
    return _clipped(a["input"]) / 6


def _hardswish(a: Arguments) -> Exact:
    x: Exact = a["input"]
    return x * _clipped(x) / 6


def _scaled(a: Arguments) -> Exact:
    other: Exact = a["other"]
    alpha = a.get("alpha", 1)
    return other if alpha == 1 else other * constant(alpha)


def _table(function: Callable[..., Any], *settings: str) -> ExactOp:
    """A function that has no exact value: the model's own in double precision.

    The double that torch gives is taken for the number itself: it lies within a few units of the
    53rd bit of the real one, and where a rounding is nearer than that, the model decides.
    """

    def evaluate(a: Arguments) -> Exact:
        options = {name: a[name] for name in settings if name in a}
        x = torch.from_numpy(np.ascontiguousarray(a["input"].double()))
        return Exact.of(function(x, **options).numpy())

    return evaluate


EXACT_OPS: dict[str, ExactOp] = {
    "linear": _linear,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "batch_norm1d": _batch_norm,
    "batch_norm2d": _batch_norm,
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    "adaptive_avg_pool2d": _adaptive_avg_pool,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "sigmoid": _table(torch.sigmoid),
    "tanh": _table(torch.tanh),
    "gelu": _table(F.gelu, "approximate"),
    "silu": _table(F.silu),
    "elu": _table(F.elu, "alpha"),
    "mish": _table(F.mish),
    "softplus": _table(F.softplus, "beta", "threshold"),
    "softsign": _table(F.softsign),
    "add": lambda a: a["input"] + _scaled(a),
    "sub": lambda a: a["input"] - _scaled(a),
    "mul": lambda a: a["input"] * a["other"],
}
"""By the op's name in the op table; what only moves numbers is run by torch on their places."""
VIEWS = ("flatten", "view", "reshape", "squeeze", "unsqueeze", "unflatten", "contiguous")
MOVES = frozenset((*VIEWS, "permute", "transpose"))
UNCHANGED = frozenset(("identity", "dropout", "dropout1d", "dropout2d"))
