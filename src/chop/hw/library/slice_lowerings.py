"""Ops that take elements of a tensor: slices, tokens, chunks, repetitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from chop.hw.arith.golden import Ints
from chop.hw.design.control import Wire
from chop.hw.design.stream import Stream
from chop.hw.lower import fixed_formats
from chop.hw.lower.calls import called, gives_tensor
from chop.hw.lower.engine import Lowerer, Shape, Value, row_major
from chop.hw.lower.lowerings import lowers
from chop.hw.streams.stream_slice import Slice
from chop.ir.meta import mase_meta

BATCH = 1021
"""Tensors of the batch that places are picked from: more than any index in a model, and prime."""


@lowers("wire_pick", is_wiring=True, reads_size=True)
def lower_pick(low: Lowerer, node: fx.Node) -> Value | None:
    """Lower to the elements that the op itself takes from a tensor of places.

    None for an index into sizes, for parts that another node takes one of, and for constants.
    """
    if not gives_tensor(node):
        return None
    pick = _picked(low, node)
    if pick is None or isinstance(pick[1], tuple):
        return None
    value, picked = pick
    result = _taken(low, node, value, picked)
    number = fixed_formats.result_format(node)
    return result if number is None else low.cast(f"{node.name}_cast", result, number)


def _picked(low: Lowerer, node: fx.Node) -> tuple[Value, Any] | None:
    """Return the value that `node` reads, and the places it takes: a tensor or a tuple of some."""
    source = node.args[0]
    assert isinstance(source, fx.Node), f"{node.name} takes of a tensor"
    if source in low.values:
        value = low.operand(node)
        one = torch.arange(math.prod(value.shape)).reshape(1, *value.shape)
        places = one.expand(BATCH, *one.shape[1:])
    elif source.op.startswith("call") and low.op(source).rtl in ("wire_pick", "wire_permute"):
        inner = _picked(low, source)
        if inner is None:
            return None
        value, places = inner
    else:
        return None
    if not gives_tensor(node):
        return None
    if low.op(node).name == "expand":  # to the captured batch
        return value, called(node, places[:1])[:1].expand(BATCH, *[-1] * len(_shape(node)))
    return value, called(node, places)


def _shape(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of the result of `node`, without its batch."""
    return tuple(mase_meta(node).common["results"]["data_out_0"]["shape"])[1:]


def _taken(low: Lowerer, node: fx.Node, value: Value, picked: Tensor) -> Value:
    """Return the stream of the places `picked`: the same, a part of it, or a gathered one."""
    shape = tuple(picked.shape[1:])
    flat: Ints = picked[:1].reshape(-1).numpy()
    if len(flat) == 0 or len(picked) != BATCH:
        what = "no element" if len(flat) == 0 and len(picked) == BATCH else "a part of the batch"
        allowed = "Allowed: some elements of each tensor, the whole batch (x[:, …])"
        raise low.refuse(node, what, allowed)
    if len(np.unique(flat)) < len(flat):
        place = np.empty_like(value.order)
        place[value.order] = np.arange(len(place))
        return Value(low.gather(node, value, place[flat], shape), shape, row_major(shape))
    becomes = np.full(len(value.order), -1)
    becomes[flat] = np.arange(len(flat))
    order = becomes[value.order]  # by place in the stream: the element of the result, or none
    stays = np.flatnonzero(order >= 0)
    if len(stays) == len(order):
        return Value(value.wire, shape, order)
    wire = _part(low, node, value, stays, shape)
    return Value(wire, shape, order[stays])


def _part(low: Lowerer, node: fx.Node, value: Value, places: Ints, shape: Shape) -> Wire:
    """Return places of a stream in their order: a slice of each row, or gathered."""
    stream, first = low.stream(value), int(places[0])
    runs = 1 + int(np.count_nonzero(np.diff(places) > 1))
    size, period = len(places) // runs, stream.elements // runs
    rows = np.arange(runs)[:, None] * period + first + np.arange(size)
    is_even = runs * size == len(places) and runs * period == stream.elements
    if not is_even or not np.array_equal(rows.reshape(-1), places):
        return low.gather(node, value, places, shape)
    lanes = math.gcd(stream.lanes, first, size, period)
    out = shape if shape[-1] % lanes == 0 else (len(places),)
    source = Stream((runs, period), lanes, stream.format)
    return low.builder.add(low.builder.fresh(node.name), Slice(source, first, out), value.wire)
