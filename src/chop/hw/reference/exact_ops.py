"""Definition of each op in exact arithmetic.

Add an op: a function of the call's arguments by name under `@exact_op`, in the folder of the
component that realises it. It may use this module and `chop.hw.reference.exact`, and nothing of
the lowering or of the golden models: they are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from chop.errors import HardwareError, RegistryError
from chop.hw.reference.exact import Codes, Exact

Arguments = Mapping[str, Any]
"""Arguments of a call: operands and parameters are `Exact`, settings are as torch has them.

Under `integer`, where the call's config says `arithmetic = "integer"`: its formats by argument, and
`data_out`, and as `given` the first operand before it is brought to one.
"""
ExactOp = Callable[[Arguments], Exact]
F = TypeVar("F", bound=ExactOp)

EXACT_OPS: dict[str, ExactOp] = {}
"""Op of the op table -> definition. Ops that only move numbers run in torch, on places."""
ARGUMENTS: dict[str, tuple[str, ...]] = {}
"""Positional arguments, and the attributes of the layers, by op."""
VIEWS = ("flatten", "view", "reshape", "squeeze", "unsqueeze", "unflatten", "contiguous")
PICKS = ("getitem", "narrow", "expand", "chunk", "split", "unbind", "flip", "roll")
SHUFFLES = ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
MOVES = frozenset((*VIEWS, *PICKS, *SHUFFLES, "permute", "transpose"))
UNCHANGED = frozenset(("identity", "dropout", "dropout1d", "dropout2d"))


def exact_op(names: str, arguments: str) -> Callable[[F], F]:
    """Register the definition of the ops in `names`; `arguments` are those of the call, in order.

    Both are lists of words: `@exact_op("add", "input other alpha")`.
    """

    def decorate(function: F) -> F:
        for name in names.split():
            if name in EXACT_OPS:
                raise RegistryError(f"exact definition of op '{name}' is already registered.")
            EXACT_OPS[name] = function
            ARGUMENTS[name] = tuple(arguments.split())
        return function

    return decorate


LEAST = -(1 << 128)
"""Stand-in for minus infinity among exact numbers."""


def is_kept(x: Exact) -> Codes:
    """Return a mask of the numbers that are no minus infinity: those above -2**100."""
    return np.asarray(x.codes > (-(1 << 100) * x.divisor << x.frac_width)).astype(bool)


def with_bias(x: Exact, bias: Exact | None, axis: int) -> Exact:
    """Return `x` plus a number for each index of a dimension, if there is a bias."""
    return x if bias is None else x + along(bias, axis, len(x.shape))


def along(x: Exact, axis: int, dims: int) -> Exact:
    """Return a vector as a tensor of `dims` dimensions that varies along one of them."""
    shape = [1] * dims
    shape[axis] = -1
    return x.take(x.codes.reshape(shape))


def sizes_of(value: Any, dims: int) -> list[int]:
    """Return one size per dimension from a number or a tuple."""
    sizes = list(value) if isinstance(value, Sequence) else [value] * dims
    return [int(v) for v in (sizes * dims if len(sizes) == 1 else sizes)]


def refuse_setting(name: str, value: Any, allowed: str) -> HardwareError:
    """Return the error for a setting that has no definition here."""
    return HardwareError(
        f"{name} = {value}: the exact reference has no such op. Allowed: {allowed}"
    )


def padded(codes: Codes, padding: Sequence[int], fill: int) -> Codes:
    """Return the last dimensions grown by `padding` on both sides."""
    outer = codes.ndim - len(padding)
    shape = [n + 2 * p for n, p in zip(codes.shape[outer:], padding, strict=True)]
    # not np.pad: among Python's integers it would put NumPy's, which overflow
    grown = np.full((*codes.shape[:outer], *shape), fill, dtype=codes.dtype)
    inner: list[Any] = [slice(p, p + n) for n, p in zip(codes.shape[outer:], padding, strict=True)]
    grown[(..., *inner)] = codes
    return grown


def window_parts(
    codes: Codes, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> dict[tuple[int, ...], Codes]:
    """Return the elements at each offset in the window, for every window."""
    sizes = codes.shape[codes.ndim - len(kernel) :]
    counts = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
    ]
    parts = {}
    for offset in np.ndindex(*kernel):
        starts = [o * d for o, d in zip(offset, dilation, strict=True)]
        cuts: list[Any] = [
            slice(b, b + s * (c - 1) + 1, s) for b, s, c in zip(starts, stride, counts, strict=True)
        ]
        parts[offset] = codes[(..., *cuts)]
    return parts
