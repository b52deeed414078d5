"""Ops that compute nothing: the same numbers under another shape or in another order."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx

from chop.hw.lower import fixed_formats
from chop.hw.lower.calls import called
from chop.hw.lower.engine import Lowerer, Value
from chop.hw.lower.lowerings import lowers
from chop.ir.meta import mase_meta
from chop.ir.ops import OPS


def _given(low: Lowerer, node: fx.Node, value: Value) -> Value:
    """Return the result of wiring, in the format that the config states for it."""
    number = fixed_formats.result_format(node)
    return value if number is None else low.cast(f"{node.name}_cast", value, number)


@lowers("wire", is_wiring=True)
def lower_wire(low: Lowerer, node: fx.Node) -> Value:
    """Lower to the same stream: dropout at inference, identity."""
    return _given(low, node, low.operand(node))


@lowers("wire_view", is_wiring=True)
def lower_view(low: Lowerer, node: fx.Node) -> Value:
    """Lower to the same stream with another shape: flatten, view."""
    value = low.operand(node)
    shape = tuple(mase_meta(node).common["results"]["data_out_0"]["shape"])[1:]
    if math.prod(shape) != len(value.order):
        raise low.refuse(node, f"a view as {shape}", "Allowed: views that leave the batch alone")
    return _given(low, node, replace(value, shape=shape))


FACTS = ("shape", "ndim", "dtype", "device")
"""Attributes of a tensor that are not its numbers."""


@lowers("wire_size", reads_size=True)
def lower_size(low: Lowerer, node: fx.Node) -> None:
    """Lower to nothing: sizes are constants."""
    if low.op(node) is OPS["getattr"] and node.args[1] not in FACTS:
        raise low.refuse(node, f"the attribute '{node.args[1]}'", f"Allowed: {', '.join(FACTS)}")


@lowers("wire_permute", is_wiring=True)
def lower_permute(low: Lowerer, node: fx.Node) -> Value | None:
    """Lower to the same stream; nothing moves until an op needs another order.

    A permutation of the batch is left to readers that pick a part with the batch first again.
    """
    value = low.operand(node)
    axes = _axes(low, node, len(value.shape) + 1)
    if axes[0] != 0:
        if all(
            user.op.startswith("call") and low.op(user).rtl == "wire_pick" for user in node.users
        ):
            return None
        raise low.refuse(node, "a permutation of the batch", "Allowed: any other dimensions")
    inner = [a - 1 for a in axes[1:]]
    old = np.arange(len(value.order)).reshape(value.shape).transpose(inner)
    place = np.empty(len(value.order), dtype=np.int64)
    place[old.reshape(-1)] = np.arange(len(value.order))
    return _given(low, node, Value(value.wire, old.shape, place[value.order]))


@lowers("wire_shuffle", is_wiring=True)
def lower_shuffle(low: Lowerer, node: fx.Node) -> Value:
    """Lower to the same stream: channels become pixels, pixels channels, or channels change place.

    Each tensor of the batch is permuted alone, by the op itself on a tensor of places.
    """
    value = low.operand(node)
    places = torch.arange(math.prod(value.shape)).reshape(1, *value.shape)
    moved = called(node, places)
    place = np.empty(len(value.order), dtype=np.int64)
    place[moved.reshape(-1).numpy()] = np.arange(len(value.order))
    return _given(low, node, Value(value.wire, tuple(moved.shape[1:]), place[value.order]))


def _axes(low: Lowerer, node: fx.Node, dims: int) -> list[int]:
    rest: list[Any] = [a for a in node.args[1:] if not isinstance(a, fx.Node)]
    rest += [v for k, v in node.kwargs.items() if k in ("dims", "dim0", "dim1")]
    flat = [int(a) % dims for r in rest for a in (r if isinstance(r, tuple | list) else [r])]
    if low.op(node).name == "transpose" and len(flat) == 2:
        axes = list(range(dims))
        axes[flat[0]], axes[flat[1]] = axes[flat[1]], axes[flat[0]]
        return axes
    if sorted(flat) == list(range(dims)):
        return flat
    raise low.refuse(node, f"dimensions {rest}", "Allowed: a permutation, or two dimensions")
