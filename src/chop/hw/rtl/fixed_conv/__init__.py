"""Convolution of images and of sequences: a line buffer, then a product per output pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.component import Component, Cost, Memory, Parameter, register
from chop.hw.exact import Exact, product
from chop.hw.exact_ops import (
    Arguments,
    exact_op,
    padded,
    refuse_setting,
    sizes_of,
    window_parts,
    with_bias,
)
from chop.hw.golden import Fixed, Ints
from chop.hw.lower import Lowerer, Value, lowers
from chop.hw.lower.engine import pixel_shape
from chop.hw.rtl.fixed_linear import (
    Linear,
    Weights,
    check_lanes,
    parameters_of,
    sample_weights,
    weights_of,
)
from chop.hw.rtl.sliding_window import (
    SlidingWindow,
    Windowed,
    WindowTwin,
    geometry_parameters,
    pair,
    pixels_of,
    windows,
)
from chop.hw.samples import BYTE, stream
from chop.hw.stream import Stream
from chop.hw.twin import Twin


@dataclass(frozen=True, eq=False)
class Conv(Windowed):
    """Convolution; weight codes are (outputs, kernel rows * kernel columns * channels)."""

    weights: Weights = field(kw_only=True)
    format: Fixed = field(kw_only=True)
    lanes: int = field(default=1, kw_only=True)
    module = "fixed_conv"

    def __post_init__(self) -> None:
        outputs, inputs = self.weights.weight.shape
        check_lanes(self.name, outputs, self.lanes)
        wanted = self.kernel[0] * self.kernel[1] * self.source.shape[-1]
        if inputs != wanted:
            raise ConfigError(f"{self.name}: weights take {inputs} inputs, a window has {wanted}.")
        object.__setattr__(self, "inputs", (self.source,))
        out = Stream(self.image_shape(outputs), self.lanes, self.format)
        object.__setattr__(self, "outputs", (out,))

    @property
    def product(self) -> Linear:
        """The linear layer that the windows are fed to."""
        window = SlidingWindow(self.source, self.kernel, self.stride, self.padding).output
        return Linear(window, self.weights, self.format, self.lanes)

    def golden(self, *data: Ints) -> Ints:
        found = windows(data[0], self.geometry, 0)
        vectors = found.reshape(len(data[0]), -1, self.weights.weight.shape[1])
        return self.product.golden(vectors).reshape(-1, *self.outputs[0].shape)

    def parameters(self) -> Mapping[str, Parameter]:
        of_product = dict(self.product.parameters())
        del of_product["DATA_IN_0_TENSOR_SIZE_DIM_0"]
        return {**of_product, **geometry_parameters(self.source, self.geometry)}

    def memories(self) -> tuple[Memory, ...]:
        return self.product.memories()

    def twins(self) -> list[Twin]:
        return [WindowTwin(self.geometry), *self.product.twins()]

    def cycles(self) -> int:
        return max(super().cycles(), self.product.cycles())

    def products(self) -> int:
        return self.product.products()

    def cost(self) -> Cost:
        return self.product.cost() + self.line_cost()


@register
class Conv2d(Conv):
    """Over images."""

    name = "fixed_conv2d"

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(
                stream(rows, rows, channels, lanes=lanes),
                (kernel, kernel),
                (stride, stride),
                (padding, padding),
                weights=sample_weights(outputs, kernel * kernel * channels),
                format=BYTE,
                lanes=out_lanes,
            )
            for rows, channels, lanes, kernel, stride, padding, outputs, out_lanes in (
                (5, 2, 2, 3, 1, 1, 4, 2),
                (6, 1, 1, 3, 2, 0, 2, 1),
                (4, 4, 4, 1, 1, 0, 2, 1),
            )
        ]


@register
class Conv1d(Conv):
    """Over sequences: `kernel`, `stride`, `padding` have 1, 1, 0 for the rows."""

    name = "fixed_conv1d"

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(
                stream(length, channels, lanes=lanes),
                (kernel, 1),
                (stride, 1),
                (padding, 0),
                weights=sample_weights(outputs, kernel * channels),
                format=BYTE,
                lanes=out_lanes,
            )
            for length, channels, lanes, kernel, stride, padding, outputs, out_lanes in (
                (9, 2, 2, 3, 1, 1, 4, 4),
                (10, 3, 1, 4, 3, 2, 2, 1),
            )
        ]


# -- from a node -----------------------------------------------------------------------------------


def _convolution(
    low: Lowerer, node: fx.Node, kind: type[Conv1d] | type[Conv2d], dims: int
) -> Value:
    weight, bias = parameters_of(low, node)
    padding = _checked_padding(low, node)
    value = low.operand(node)
    if len(value.shape) != dims + 1:
        raise low.refuse(node, f"an operand of shape {value.shape}", "Allowed: one with a batch")
    value = low.pixels(node, value)
    in_lanes, out_lanes = low.parallelism.of(node.name, weight.shape[1], weight.shape[0])
    source = Stream(pixel_shape(value.shape), in_lanes, low.stream(value).format)
    # (out, in, rows, columns) -> (out, rows, columns, in): the order of a window
    weights = weights_of(node, weight.movedim(1, -1).reshape(weight.shape[0], -1), bias)
    layer = kind(
        source,
        pair(tuple(weight.shape[2:]), dims),
        pair(low.setting(node, "stride", 1), dims),
        padding if dims == 2 else (padding[0], 0),
        weights=weights,
        format=low.result_format(node, weights.span(source.format)),
        lanes=out_lanes,
    )
    return pixels_of(low.add(node, layer, value), layer)


def _checked_padding(low: Lowerer, node: fx.Node) -> tuple[int, int]:
    """Zeros on each side, by (columns, rows); settings that are not built are refused."""
    for name, allowed in (("groups", 1), ("dilation", 1)):
        given = low.setting(node, name, allowed)
        if set(np.atleast_1d(given).tolist()) != {allowed}:
            raise low.refuse(node, f"{name} = {given}", f"Allowed: {name} = {allowed}")
    padding = low.setting(node, "padding", 0)
    if isinstance(padding, str) or low.setting(node, "padding_mode", "zeros") != "zeros":
        raise low.refuse(node, f"padding = {padding}", "Allowed: a number of zeros on each side")
    return pair(padding, 2 if np.size(padding) == 2 else 1)


@lowers("fixed_conv2d", takes_pixels=True)
def lower_conv2d(low: Lowerer, node: fx.Node) -> Value:
    """A convolution over images."""
    return _convolution(low, node, Conv2d, 2)


@lowers("fixed_conv1d", takes_pixels=True)
def lower_conv1d(low: Lowerer, node: fx.Node) -> Value:
    """A convolution over sequences."""
    return _convolution(low, node, Conv1d, 1)


# -- by definition ---------------------------------------------------------------------------------


@exact_op("conv1d conv2d", "input weight bias stride padding dilation groups padding_mode")
def exact_convolution(a: Arguments) -> Exact:
    """Sums over every window, in torch's own order of the weights."""
    x, weight = a["input"], a["weight"]
    dims = len(weight.shape) - 2
    if a.get("groups", 1) != 1:
        raise refuse_setting("groups", a["groups"], "groups = 1")
    if isinstance(a.get("padding", 0), str) or a.get("padding_mode", "zeros") != "zeros":
        raise refuse_setting("padding", a.get("padding"), "a number of zeros on each side")
    kernel = weight.shape[2:]
    options = [sizes_of(a.get(name, 1), dims) for name in ("stride", "dilation")]
    image = padded(x.codes, sizes_of(a.get("padding", 0), dims), 0)
    parts = window_parts(image, kernel, *options)
    # (batch, channels, …) at each offset -> (batch, …, channels * offsets), as the weight's rows
    columns = np.stack([np.moveaxis(part, 1, -1) for part in parts.values()], axis=-1)
    rows = x.take(columns.reshape(*columns.shape[:-2], -1))
    matrix = weight.take(weight.codes.reshape(weight.shape[0], -1))
    sums = product(rows, matrix)
    return with_bias(sums.take(np.moveaxis(sums.codes, -1, 1)), a.get("bias"), 1)
