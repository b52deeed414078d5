"""Pooling over the windows of an image."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from chop.hw.component import Component
from chop.hw.components import AvgPool, MaxPool
from chop.hw.components.spatial import mean_span
from chop.hw.design import Wire
from chop.hw.lower.engine import Lowerer, Value, lowers, pixel_order, pixel_shape
from chop.hw.stream import Stream

Pair = tuple[int, int]


def pair(value: Any, dims: int) -> Pair:
    """(columns, rows) of a size given as one number or as (rows, columns)."""
    sizes = [int(v) for v in value] if isinstance(value, tuple | list) else [int(value)] * dims
    return (sizes[-1], sizes[0] if dims == 2 else 1)


def pixels_of(wire: Wire, component: Component) -> Value:
    """A value streamed pixel by pixel, from the shape of the stream that gives it."""
    stream_shape = component.output.shape
    shape = (stream_shape[-1], *stream_shape[:-1])
    return Value(wire, shape, pixel_order(shape))


def _pooled(low: Lowerer, node: fx.Node) -> tuple[Value, Stream]:
    value = low.operand(node)
    if len(value.shape) != 3:
        raise low.refuse(
            node, f"an operand of shape {value.shape}", "Allowed: (channels, rows, columns)"
        )
    value = low.pixels(node, value)
    shape = pixel_shape(value.shape)
    lanes = low.stream(value).lanes
    lanes = lanes if shape[-1] % lanes == 0 else 1
    return value, Stream(shape, lanes, low.stream(value).format)


def _window(low: Lowerer, node: fx.Node) -> tuple[Pair, Pair, Pair]:
    if low.setting(node, "ceil_mode", False):
        raise low.refuse(node, "ceil_mode = True", "Allowed: ceil_mode = False")
    if set(np.atleast_1d(low.setting(node, "dilation", 1)).tolist()) != {1}:
        raise low.refuse(node, "a dilation", "Allowed: dilation = 1")
    kernel = low.setting(node, "kernel_size", None)
    stride = low.setting(node, "stride", None)
    padding = low.setting(node, "padding", 0)
    stride = kernel if stride in (None, (), []) else stride
    return pair(kernel, 2), pair(stride, 2), pair(padding, 2)


@lowers("fixed_max_pool")
def _max_pool(low: Lowerer, node: fx.Node) -> Value:
    if low.setting(node, "return_indices", False):
        raise low.refuse(node, "return_indices = True", "Allowed: return_indices = False")
    value, source = _pooled(low, node)
    kernel, stride, padding = _window(low, node)
    pool = MaxPool(source, kernel, stride, padding, format=source.format)
    return pixels_of(low.add(node, pool, value), pool)


@lowers("fixed_avg_pool")
def _avg_pool(low: Lowerer, node: fx.Node) -> Value:
    value, source = _pooled(low, node)
    kernel, stride, padding = _window(low, node)
    divisor = low.setting(node, "divisor_override", None) or 0
    if not low.setting(node, "count_include_pad", True) and any(padding) and not divisor:
        raise low.refuse(
            node,
            "count_include_pad = False divides windows at the edge by another number",
            "Allowed: count_include_pad = True, or padding = 0",
        )
    if divisor < 0:
        raise low.refuse(node, f"divisor_override = {divisor}", "Allowed: 1 or more")
    return _average(low, node, value, source, (kernel, stride, padding), divisor)


@lowers("global_avg_pool")
def _global_avg_pool(low: Lowerer, node: fx.Node) -> Value:
    size = low.setting(node, "output_size", 1)
    if set(np.atleast_1d(size).tolist()) != {1}:
        raise low.refuse(node, f"output_size = {size}", "Allowed: output_size = 1")
    value, source = _pooled(low, node)
    whole = (source.shape[1], source.shape[0])
    return _average(low, node, value, source, (whole, whole, (0, 0)), 0)


def _average(
    low: Lowerer,
    node: fx.Node,
    value: Value,
    source: Stream,
    window: tuple[Pair, Pair, Pair],
    divisor: int,
) -> Value:
    area = window[0][0] * window[0][1]
    exact = mean_span(source.format, area, divisor or area)
    why = f"a mean over {divisor or area} is no binary fraction"
    number = low.result_format(node, exact, why)
    pool = AvgPool(source, *window, format=number, divisor=0 if divisor == area else divisor)
    return pixels_of(low.add(node, pool, value), pool)
