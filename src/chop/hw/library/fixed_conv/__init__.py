"""Convolution of images and of sequences: a line buffer, then a product per output pixel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.design.clock import DEFAULT_MHZ
from chop.hw.design.component import Component, ComponentCost, Memory, Parameter, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.samples import BYTE, row_ends, stream
from chop.hw.design.stream import Stream
from chop.hw.library.fixed_conv.padding import Sides, added_zeros, padding_mode
from chop.hw.library.fixed_linear import (
    ExternalLinear,
    ExternalLinearTwin,
    ExternalWeights,
    Linear,
    Weights,
    check_lanes,
    parameters_of,
    product_maker,
    sample_weights,
    weights_of,
)
from chop.hw.library.sliding_window import (
    Pair,
    SlidingWindow,
    Windowed,
    WindowTwin,
    geometry_parameters,
    pair,
    pixels_of,
    windows,
)
from chop.hw.library.whole_window import WholeWindow
from chop.hw.lower import Lowerer, Value, lowers
from chop.hw.lower.engine import pixel_shape
from chop.hw.reference.exact import Exact, product
from chop.hw.reference.exact_ops import (
    Arguments,
    exact_op,
    padded,
    refuse_setting,
    sizes_of,
    window_parts,
    with_bias,
)
from chop.ir.ops import OPS


@dataclass(frozen=True, eq=False)
class Conv(Windowed):
    """Convolution; weight codes are (outputs, kernel rows * kernel columns * channels)."""

    weights: Weights = field(kw_only=True)
    format: Fixed = field(kw_only=True)
    lanes: int = field(default=1, kw_only=True)
    clock_mhz: float = field(default=DEFAULT_MHZ, kw_only=True)
    module = "fixed_conv"

    def __post_init__(self) -> None:
        outputs, inputs = self.weights.weight.shape
        check_lanes(self.name, outputs, self.lanes)
        size = self.kernel[0] * self.kernel[1] * self.source.shape[-1]
        if inputs != size:
            raise ConfigError(f"{self.name}: weights take {inputs} inputs, a window has {size}.")
        object.__setattr__(self, "inputs", (self.source,))
        out = Stream(self.image_shape(outputs), self.lanes, self.format)
        object.__setattr__(self, "outputs", (out,))

    @property
    def product(self) -> Linear:
        """Linear layer behind the windows."""
        window = SlidingWindow(self.source, self.kernel, self.stride, self.padding).output
        return Linear(window, self.weights, self.format, self.lanes, clock_mhz=self.clock_mhz)

    def golden(self, *data: Ints) -> Ints:
        shape = (len(data[0]), -1, self.weights.weight.shape[1])
        vectors = windows(data[0], self.geometry, 0).reshape(shape)
        return self.product.golden(vectors).reshape(-1, *self.outputs[0].shape)

    def ends(self) -> tuple[Ints, ...]:
        window = replace(self.product.source, shape=self.weights.weight.shape[1:])
        return (self._images(self.weights.ends(window)),)

    def _images(self, vectors: Ints) -> Ints:
        """Return an image for each of `vectors`, with it in the window of the least padding."""
        places = np.arange(1, self.source.elements + 1).reshape(1, *self.source.shape)
        taps = windows(places, self.geometry, 0).reshape(-1, vectors.shape[1])
        inner = taps[np.argmax((taps > 0).sum(axis=1))]
        number = self.source.format
        images = np.full((len(vectors), self.source.elements + 1), max(number.low, 0))
        images[:, inner] = vectors  # place 0 is all of the padding
        return images[:, 1:].reshape(-1, *self.source.shape)

    def intervals(self) -> Mapping[str, Span]:
        return self.product.intervals()

    def parameters(self) -> Mapping[str, Parameter]:
        of_product = dict(self.product.parameters())
        del of_product["DATA_IN_0_TENSOR_SIZE_DIM_0"]
        return {**of_product, **geometry_parameters(self.source, self.geometry)}

    def for_clock(self, clock_mhz: float) -> Component:
        return replace(self, clock_mhz=clock_mhz)

    def memories(self) -> tuple[Memory, ...]:
        return self.product.memories()

    def reads(self, memory: Memory) -> int:
        return self.product.vectors

    def twins(self) -> list[Twin]:
        return [WindowTwin(self.geometry), *self.product.twins()]

    def cycles(self) -> int:
        return max(super().cycles(), self.product.cycles())

    def products(self) -> int:
        return self.product.products()

    def cost(self) -> ComponentCost:
        return self.product.cost() + self.line_cost()


@register
class Conv2d(Conv):
    """Convolution of images."""

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
    """Convolution of sequences: `kernel`, `stride`, `padding` have 1, 1, 0 for the rows."""

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


class ExternalWindowTwin(WindowTwin):
    """Cycle model of the line buffer of a convolution whose second input is its weights."""

    name = "External window"
    sources = (0,)


class ExternalConvTwin(ExternalLinearTwin):
    """Product behind the windows; its weights are the second input and may be late."""

    name = "External convolution"
    sources = (-1, 1)


@dataclass(frozen=True, eq=False)
class ExternalConv(Conv):
    """Convolution with weights from outside, which come once per output pixel."""

    weights: ExternalWeights = field(kw_only=True)
    pins = ("data_in_0", "weight")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "inputs", (self.source, self.product.inputs[1]))

    @property
    def product(self) -> ExternalLinear:
        window = SlidingWindow(self.source, self.kernel, self.stride, self.padding).output
        clock = self.clock_mhz
        return ExternalLinear(window, self.weights, self.format, self.lanes, clock_mhz=clock)

    def golden(self, *data: Ints) -> Ints:
        shape = (len(data[0]), -1, self.weights.weight.shape[1])
        vectors = windows(data[0], self.geometry, 0).reshape(shape)
        return self.product.golden(vectors, data[1]).reshape(-1, *self.outputs[0].shape)

    def ends(self) -> tuple[Ints, ...]:
        return row_ends(self.inputs)

    def twins(self) -> list[Twin]:
        product = self.product
        second = ExternalConvTwin(product.folds, product.latency)
        return [ExternalWindowTwin(self.geometry), second]

    @classmethod
    def cases(cls) -> Sequence[Component]:
        inside = [case for case in INSIDE[cls].cases() if isinstance(case, Conv)]
        return [
            cls(
                case.source, case.kernel, case.stride, case.padding,
                weights=case.weights.external(), format=case.format, lanes=case.lanes,
            )
            for case in inside
        ]  # fmt: skip


@register
class ExternalConv2d(ExternalConv):
    """Convolution of images."""

    name = "fixed_conv2d_external"


@register
class ExternalConv1d(ExternalConv):
    """Convolution of sequences."""

    name = "fixed_conv1d_external"


OUTSIDE: dict[type[Conv], type[ExternalConv]] = {Conv2d: ExternalConv2d, Conv1d: ExternalConv1d}
"""Components with weights from outside, by those that have them in a memory."""
INSIDE = {outside: inside for inside, outside in OUTSIDE.items()}

# -- from a node -----------------------------------------------------------------------------------


def _convolution(
    low: Lowerer, node: fx.Node, kind: type[Conv1d] | type[Conv2d], dims: int
) -> Value:
    weight, bias = parameters_of(low, node)
    weight = _spread(weight, low.setting(node, "groups", 1), low.setting(node, "dilation", 1))
    weight, padding = _with_even_padding(weight, _checked_sides(low, node))
    value = low.operand(node)
    if len(value.shape) != dims + 1:
        raise low.refuse(node, f"an operand of shape {value.shape}", "Allowed: one with a batch")
    value = low.pixels(node, value)
    if low.parallelism.multiplier_of(node.name) != "array":
        return _whole_windows(low, node, value, (weight, bias), padding)
    in_lanes, out_lanes = low.parallelism.of(node.name, weight.shape[1], weight.shape[0])
    source = Stream(pixel_shape(value.shape), in_lanes, low.stream(value).format)
    weights = weights_of(node, _matrix(weight), bias, place=low.weight_place(node))
    is_external = isinstance(weights, ExternalWeights)
    make: Callable[..., Conv] = OUTSIDE[kind] if is_external else kind
    layer = make(
        source,
        pair(tuple(weight.shape[2:]), dims),
        pair(low.setting(node, "stride", 1), dims),
        padding,
        weights=weights,
        format=low.result_format(node, weights.span(source.format)),
        lanes=out_lanes,
    )
    codes = weights.tiles(in_lanes, out_lanes)
    ports = [low.weight_port(node, layer.inputs[1], codes)] if is_external else []
    return pixels_of(low.add(node, layer, value, *ports), layer)


def _matrix(weight: Tensor) -> Tensor:
    """Return weights (out, in, rows, columns) as (out, rows * columns * in), a window's order."""
    return weight.movedim(1, -1).reshape(weight.shape[0], -1)


def _whole_windows(
    low: Lowerer,
    node: fx.Node,
    value: Value,
    parameters: tuple[Tensor, Tensor | None],
    padding: Pair,
) -> Value:
    """Lower to a product with constants of each whole window: all channels of a pixel a cycle."""
    weight, bias = parameters
    make, how = product_maker(low, node), low.parallelism.multiplier_of(node.name)
    if how == "packed":
        allowed = "Allowed for a convolution: 'array', 'shift_add', 'tables'"
        raise low.refuse(node, "multiplier 'packed'", allowed)
    if low.takes_weights(node):
        allowed = "weights from outside are multiplied by an array: multiplier 'array'"
        raise low.refuse(node, "no array of multipliers with external weights", allowed)
    shape, dims = pixel_shape(value.shape), weight.dim() - 2
    window = WholeWindow(
        Stream(shape, shape[-1], low.stream(value).format),
        pair(tuple(weight.shape[2:]), dims),
        pair(low.setting(node, "stride", 1), dims),
        padding,
    )
    wire = low.builder.add(low.builder.fresh(f"{node.name}_window"), window, value.wire)
    weights = weights_of(node, _matrix(weight), bias)
    number = low.result_format(node, weights.span(window.output.format))
    layer = make(low, node.name, window.output, weights, number)
    return pixels_of(low.add(node, layer, wire), layer)


def _with_even_padding(weight: Tensor, sides: Sequence[Sides]) -> tuple[Tensor, Pair]:
    """Return a weight and an even padding by (columns, rows) that compute the same.

    Windows of an even padding start further left. The weight gets zeros there, so that the same
    elements meet the same weights: (0, 1) zeros and a kernel of 3 are 1 zero and a kernel of 4.
    """
    largest = [max(pair_of) for pair_of in sides]
    grown = [zeros - one for zeros, pair_of in zip(largest, sides, strict=True) for one in pair_of]
    columns, rows = [*largest, 0][:2]
    return torch.nn.functional.pad(weight, grown), (columns, rows)


def _spread(weight: Tensor, groups: int, dilation: int | Sequence[int]) -> Tensor:
    """Return a weight of one group without dilation that computes the same.

    It has zeros between the elements of a dilated kernel, and for the channels of other groups. An
    array multiplies by them too; products with constants (`shift_add`, `tables`) leave them out.
    """
    outputs, inputs, *kernel = weight.shape
    steps = np.broadcast_to(np.atleast_1d(dilation), len(kernel)).tolist()
    if groups > 1:
        dense = weight.new_zeros(outputs, groups, inputs, *kernel)
        of_group = torch.arange(outputs) // (outputs // groups)
        dense[torch.arange(outputs), of_group] = weight
        weight = dense.flatten(1, 2)
    if set(steps) == {1}:
        return weight
    sizes = [step * (k - 1) + 1 for step, k in zip(steps, kernel, strict=True)]
    wide = weight.new_zeros(*weight.shape[:2], *sizes)
    places: list[Any] = [slice(None, None, step) for step in steps]
    wide[(..., *places)] = weight
    return wide


def _checked_sides(low: Lowerer, node: fx.Node) -> list[Sides]:
    """Return the zeros on both sides of columns, then rows; raise an error for other settings."""
    mode = low.setting(node, "padding_mode", "zeros")
    if mode != "zeros":
        raise low.refuse(node, f"padding_mode = '{mode}'", "Allowed: padding_mode = 'zeros'")
    padding = low.setting(node, "padding", 0)
    if isinstance(padding, str):
        what = f"padding = '{padding}'"
        raise low.refuse(node, what, "Allowed: a number of zeros on each side")
    dims = parameters_of(low, node)[0].dim() - 2
    own = pair(padding, dims)[:dims]
    (source, *_) = low.operands(node)
    is_padded = low.op(source) is OPS["pad"] and padding_mode(low, source) == "constant"
    before = added_zeros(low, source) if is_padded else []
    more = [*before, *[(0, 0)] * dims][:dims]
    return [(zeros + a, zeros + b) for zeros, (a, b) in zip(own, more, strict=True)]


@lowers("fixed_conv2d", takes_pixels=True)
def lower_conv2d(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a convolution of images."""
    return _convolution(low, node, Conv2d, 2)


@lowers("fixed_conv1d", takes_pixels=True)
def lower_conv1d(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a convolution of sequences."""
    return _convolution(low, node, Conv1d, 1)


# -- by definition ---------------------------------------------------------------------------------


@exact_op("conv1d conv2d", "input weight bias stride padding dilation groups padding_mode")
def exact_convolution(a: Arguments) -> Exact:
    """Return the sums over every window, in torch's order of the weights."""
    x, weight = a["input"], a["weight"]
    dims = len(weight.shape) - 2
    if isinstance(a.get("padding", 0), str) or a.get("padding_mode", "zeros") != "zeros":
        raise refuse_setting("padding", a.get("padding"), "a number of zeros on each side")
    kernel = weight.shape[2:]
    options = [sizes_of(a.get(name, 1), dims) for name in ("stride", "dilation")]
    image = padded(x.codes, sizes_of(a.get("padding", 0), dims), 0)
    parts = window_parts(image, kernel, *options)
    # (batch, channels, …) at each offset -> (batch, …, channels * offsets), as the weight's rows
    columns = np.stack([np.moveaxis(part, 1, -1) for part in parts.values()], axis=-1)
    groups = a.get("groups", 1)
    parts_of = np.split(columns, groups, axis=-2)
    weights_of_groups = np.split(weight.codes, groups, axis=0)
    sums = [
        product(x.take(part.reshape(*part.shape[:-2], -1)), weight.take(own.reshape(len(own), -1)))
        for part, own in zip(parts_of, weights_of_groups, strict=True)
    ]
    codes = np.concatenate([each.codes for each in sums], -1)
    is_rounded = any(each.is_rounded for each in sums)
    result = Exact(np.moveaxis(codes, -1, 1), sums[0].frac_width, sums[0].divisor, is_rounded)
    return with_bias(result, a.get("bias"), 1)
