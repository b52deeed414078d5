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
from chop.hw.lower import formats
from chop.hw.lower.calls import called, gives_tensor
from chop.hw.lower.engine import Lowerer, Shape, Value, row_major
from chop.hw.lower.registry import lowers
from chop.hw.streams.stream_slice import Slice
from chop.ir.meta import mase_meta

BATCH = 1021
"""Tensors of the batch that places are picked from: more than a model takes by number."""


@lowers("wire_pick", is_wiring=True, reads_size=True)
def lower_pick(low: Lowerer, node: fx.Node) -> Value | None:
    """The elements that the op itself takes of a tensor of places.

    None for an index into sizes, for parts that another node takes one of, and for constants.
    """
    if not gives_tensor(node):
        return None
    found = _picked(low, node)
    if found is None or isinstance(found[1], tuple):
        return None
    value, picked = found
    given = _taken(low, node, value, picked)
    wanted = formats.result_format(node)
    return given if wanted is None else low.cast(f"{node.name}_cast", given, wanted)


def _picked(low: Lowerer, node: fx.Node) -> tuple[Value, Any] | None:
    """The value that `node` takes of, and the places it takes: a tensor, or a tuple of some."""
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
    """The stream of the places `picked`: the same, a part of it, or one gathered anew."""
    shape = tuple(picked.shape[1:])
    flat: Ints = picked[:1].reshape(-1).numpy()
    if len(flat) == 0 or len(picked) != BATCH:
        told = "no element" if len(flat) == 0 and len(picked) == BATCH else "a part of the batch"
        allowed = "Allowed: some elements of each tensor, the whole batch (x[:, …])"
        raise low.refuse(node, told, allowed)
    if len(np.unique(flat)) < len(flat):
        place = np.empty_like(value.order)
        place[value.order] = np.arange(len(place))
        return Value(low.gather(node, value, place[flat], shape), shape, row_major(shape))
    becomes = np.full(len(value.order), -1)
    becomes[flat] = np.arange(len(flat))
    order = becomes[value.order]  # by place in the stream: the element of the result, or none
    kept = np.flatnonzero(order >= 0)
    if len(kept) == len(order):
        return Value(value.wire, shape, order)
    wire = _part(low, node, value, kept, shape)
    return Value(wire, shape, order[kept])


def _part(low: Lowerer, node: fx.Node, value: Value, kept: Ints, shape: Shape) -> Wire:
    """Places of a stream in their order: a run of each row, or gathered."""
    stream, first = low.stream(value), int(kept[0])
    runs = 1 + int(np.count_nonzero(np.diff(kept) > 1))
    size, period = len(kept) // runs, stream.elements // runs
    rows = np.arange(runs)[:, None] * period + first + np.arange(size)
    is_even = runs * size == len(kept) and runs * period == stream.elements
    if not is_even or not np.array_equal(rows.reshape(-1), kept):
        return low.gather(node, value, kept, shape)
    lanes = math.gcd(stream.lanes, first, size, period)
    out = shape if shape[-1] % lanes == 0 else (len(kept),)
    source = Stream((runs, period), lanes, stream.format)
    return low.builder.add(low.builder.fresh(node.name), Slice(source, first, out), value.wire)
