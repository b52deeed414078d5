"""Padding: zeros that the convolutions behind it add, and elements that are repeated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from chop.hw.lower import Lowerer, Value, lowers
from chop.hw.lower.calls import called
from chop.hw.reference.exact import Exact
from chop.hw.reference.exact_ops import Arguments, exact_op, refuse_setting
from chop.ir.meta import mase_meta
from chop.ir.ops import OPS, node_module

Sides = tuple[int, int]
"""Zeros before and behind the elements of a dimension."""


@lowers("zero_pad", takes_pixels=True, is_wiring=True)
def lower_pad(low: Lowerer, node: fx.Node) -> Value:
    """Lower to the image itself, and the convolutions that read it pad it.

    Other modes than zeros repeat elements of the tensor: those are gathered.
    """
    if padding_mode(low, node) != "constant":
        return _repeating(low, node)
    added_zeros(low, node)
    readers = (OPS["conv1d"], OPS["conv2d"])
    wrong = [user for user in node.users if user.op == "output" or low.op(user) not in readers]
    if wrong:
        raise low.refuse(node, f"'{wrong[0].name}' reads it", "Allowed: conv1d, conv2d")
    return low.operand(node)


def padding_mode(low: Lowerer, node: fx.Node) -> str:
    """Return the padding mode of a `pad`; raise for a layer that repeats elements."""
    if node.op != "call_module":
        return str(low.setting(node, "mode", "constant"))
    name = type(node_module(node)).__name__
    if re.match("Reflection|Replication|Circular", name):
        raise low.refuse(node, name, "Allowed: layers of zeros, and F.pad in every mode")
    return "constant"


def _repeating(low: Lowerer, node: fx.Node) -> Value:
    """Return the elements of a tensor and those that its padding repeats."""
    value = low.operand(node)
    places = torch.arange(len(value.order), dtype=torch.float64).reshape(1, *value.shape)
    padded_places = called(node, places)  # in doubles: torch pads no whole numbers
    shape = tuple(padded_places.shape[1:])
    flat = padded_places.reshape(-1).numpy().astype(np.int64)
    place = np.empty_like(value.order)
    place[value.order] = np.arange(len(place))
    return Value(low.gather(node, value, place[flat], shape), shape, np.arange(len(flat)))


def added_zeros(low: Lowerer, node: fx.Node) -> list[Sides]:
    """Return the zeros that a `pad` adds on both sides of columns, then rows."""
    value = low.setting(node, "value", 0)
    if value:
        what = f"constants of {value}"
        raise low.refuse(node, what, "Allowed: zeros, or a mode that repeats elements")
    zeros = low.setting(node, "padding" if node.op == "call_module" else "pad", ())
    sides = list(zip(zeros[::2], zeros[1::2], strict=True))  # of the last dimension first
    dims = len(mase_meta(node).common["results"]["data_out_0"]["shape"]) - 2
    if any(min(pair_of) < 0 for pair_of in sides) or any(map(any, sides[dims:])):
        allowed = "Allowed: 0 or more zeros before and behind rows and columns"
        raise low.refuse(node, f"pad = {tuple(zeros)}", allowed)
    return sides[:dims]


# -- by definition ---------------------------------------------------------------------------------


@exact_op("pad", "input pad mode value padding")
def exact_pad(a: Arguments) -> Exact:
    """Return the input with zeros around its last dimensions."""
    x: Exact = a["input"]
    zeros = list(a.get("pad", a.get("padding")))
    if a.get("mode", "constant") != "constant":
        return _repeated(x, zeros, a["mode"])
    if a.get("value"):
        raise refuse_setting("value", a.get("value"), "zeros")
    sides = list(zip(zeros[::2], zeros[1::2], strict=True))[::-1]
    shape = [n + p + q for n, (p, q) in zip(x.shape[-len(sides) :], sides, strict=True)]
    grown = np.zeros((*x.shape[: -len(sides)], *shape), dtype=x.codes.dtype)
    inner: list[Any] = [
        slice(p, p + n) for n, (p, _) in zip(x.shape[-len(sides) :], sides, strict=True)
    ]
    grown[(..., *inner)] = x.codes
    return x.take(grown)


def _repeated(x: Exact, counts: Sequence[int], mode: str) -> Exact:
    """Return a tensor with elements of its own around its last dimensions."""
    codes = x.codes
    for number in range(len(counts) // 2):
        axis = codes.ndim - 1 - number
        size = codes.shape[axis]
        place = np.arange(-counts[2 * number], size + counts[2 * number + 1])
        if mode == "reflect":
            place = np.abs(place)
            place = np.where(place >= size, 2 * (size - 1) - place, place)
        elif mode == "replicate":
            place = np.clip(place, 0, size - 1)
        elif mode == "circular":
            place = place % size
        else:
            raise refuse_setting("mode", mode, "constant, reflect, replicate, circular")
        codes = np.take(codes, place, axis)
    return x.take(codes)
