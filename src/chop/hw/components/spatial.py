"""Convolution and pooling: a line buffer, then a product or a reduction per output pixel.

Images stream by row, column, channel: the shape of their stream is (rows, columns, channels), of a
sequence (positions, channels).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from chop.errors import ConfigError
from chop.hw import golden, twin
from chop.hw.component import (
    Component,
    Cost,
    Memory,
    Parameter,
    precision,
    register,
    result_precision,
    sign_parameter,
)
from chop.hw.components.linear import Linear, Weights, check_lanes
from chop.hw.golden import Fixed, Ints, Span
from chop.hw.stream import Stream
from chop.hw.twin import Geometry

Pair = tuple[int, int]


def geometry_of(source: Stream, kernel: Pair, stride: Pair, padding: Pair) -> Geometry:
    """Windows of (columns, rows) over images of `source`; a sequence is an image of one row."""
    columns, channels = source.shape[-2:]
    rows = source.shape[-3] if len(source.shape) == 3 else 1
    geometry = Geometry((columns, rows), kernel, stride, padding, channels // source.lanes)
    if min(geometry.out_size) < 1 or padding[0] >= kernel[0] or padding[1] >= kernel[1]:
        raise ConfigError(
            f"window of {kernel} with padding {padding} does not fit an image of "
            f"{columns} columns and {rows} rows: padding must be below the kernel size."
        )
    return geometry


def windows(x: Ints, g: Geometry, pad: int) -> Ints:
    """(tensors, out rows, out columns, kernel rows, kernel columns, channels)."""
    images = x.reshape(len(x), g.size[1], g.size[0], -1)
    (columns, rows) = g.padding
    padded = np.pad(images, ((0, 0), (rows, rows), (columns, columns), (0, 0)), constant_values=pad)
    views = np.lib.stride_tricks.sliding_window_view(padded, g.kernel[::-1], axis=(1, 2))
    return views[:, :: g.stride[1], :: g.stride[0]].transpose(0, 1, 2, 4, 5, 3)


def geometry_parameters(source: Stream, g: Geometry) -> dict[str, Parameter]:
    """Sizes of image, window, stride and padding; a sequence leaves out the rows."""
    found: dict[str, Parameter] = {
        "DATA_IN_0_TENSOR_SIZE_DIM_0": source.shape[-1],
        "DATA_IN_0_TENSOR_SIZE_DIM_1": source.shape[-2],
        "DATA_IN_0_PARALLELISM_DIM_0": source.lanes,
    }
    if len(source.shape) == 3:
        found["DATA_IN_0_TENSOR_SIZE_DIM_2"] = source.shape[0]
    for name, pair in (
        ("KERNEL_SIZE", g.kernel),
        ("STRIDE", g.stride),
        ("PADDING", g.padding),
    ):
        for dim in range(len(source.shape) - 1):
            found[f"{name}_DIM_{dim}"] = pair[dim]
    return found


@dataclass(frozen=True)
class Windowed(Component):
    """What convolution and pooling share: `kernel`, `stride`, `padding` are (columns, rows)."""

    source: Stream
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)

    @property
    def geometry(self) -> Geometry:
        """The windows."""
        return geometry_of(self.source, self.kernel, self.stride, self.padding)

    @property
    def window_beats(self) -> int:
        """Beats of all windows of one image."""
        g = self.geometry
        return g.out_size[0] * g.out_size[1] * g.kernel[0] * g.kernel[1] * g.beats

    def image_shape(self, channels: int) -> tuple[int, ...]:
        """Shape of the output stream."""
        columns, rows = self.geometry.out_size
        leading = (rows, columns) if len(self.source.shape) == 3 else (columns,)
        return (*leading, channels)

    def cycles(self) -> int:
        return max(self.source.beats, self.window_beats)

    def line_cost(self) -> Cost:
        """Memory of the line buffer."""
        row_bits = self.geometry.size[0] * self.source.shape[-1] * self.source.format.width
        return Cost(memory_bits=self.geometry.lines * row_bits)


@register
@dataclass(frozen=True)
class SlidingWindow(Windowed):
    """The windows themselves: one vector of kernel rows x kernel columns x channels per pixel."""

    module = "sliding_window"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.source,))
        size = self.kernel[0] * self.kernel[1] * self.source.shape[-1]
        out = replace(self.source, shape=self.image_shape(size))
        object.__setattr__(self, "outputs", (out,))

    def golden(self, *data: Ints) -> Ints:
        return windows(data[0], self.geometry, 0).reshape(-1, *self.outputs[0].shape)

    def parameters(self) -> Mapping[str, Parameter]:
        g = self.geometry
        return {
            "DATA_WIDTH": self.source.beat_width,
            "DATA_IN_0_TENSOR_SIZE_DIM_0": g.beats,
            "DATA_IN_0_TENSOR_SIZE_DIM_1": g.size[0],
            "DATA_IN_0_TENSOR_SIZE_DIM_2": g.size[1],
            **{
                f"{name}_DIM_{dim}": pair[dim]
                for name, pair in (
                    ("KERNEL_SIZE", g.kernel),
                    ("STRIDE", g.stride),
                    ("PADDING", g.padding),
                )
                for dim in (0, 1)
            },
        }

    def twins(self) -> list[twin.Twin]:
        return [twin.Window(self.geometry)]

    def cost(self) -> Cost:
        return self.line_cost()


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
            raise ConfigError(
                f"{self.name}: weights take {inputs} inputs, a window has {wanted}."
            )
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

    def twins(self) -> list[twin.Twin]:
        return [twin.Window(self.geometry), *self.product.twins()]

    def cycles(self) -> int:
        return max(super().cycles(), self.product.cycles())

    def cost(self) -> Cost:
        return self.product.cost() + self.line_cost()


@register
class Conv2d(Conv):
    """Over images."""

    name = "fixed_conv2d"


@register
class Conv1d(Conv):
    """Over sequences: `kernel`, `stride`, `padding` have 1, 1, 0 for the rows."""

    name = "fixed_conv1d"


@dataclass(frozen=True)
class Pool(Windowed):
    """One number per window and channel."""

    format: Fixed = field(kw_only=True)
    """Of the output."""
    module = "fixed_pool"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.source,))
        shape = self.image_shape(self.source.shape[-1])
        object.__setattr__(self, "outputs", (Stream(shape, self.source.lanes, self.format),))

    @property
    def area(self) -> int:
        """Pixels of a window."""
        return self.kernel[0] * self.kernel[1]

    @abstractmethod
    def golden(self, *data: Ints) -> Ints: ...

    def twins(self) -> list[twin.Twin]:
        return [twin.Window(self.geometry), twin.Reduce(self.area, self.geometry.beats)]

    def cost(self) -> Cost:
        kept = self.source.shape[-1] * (self.source.format.width + self.area.bit_length())
        return self.line_cost() + Cost(memory_bits=kept)


@register
@dataclass(frozen=True)
class MaxPool(Pool):
    """The largest of each window; the format stays."""

    name = "fixed_max_pool"

    def __post_init__(self) -> None:
        if not self.format.holds(self.source.format):
            raise ConfigError(
                f"fixed_max_pool: the format stays {self.source.format}, got {self.format}."
            )
        super().__post_init__()

    def golden(self, *data: Ints) -> Ints:
        largest: Ints = windows(data[0], self.geometry, self.format.low).max(axis=(3, 4))
        return largest

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.format.width,
            **sign_parameter(self.format),
            "DATA_OUT_0_PRECISION_0": self.format.width,
            **geometry_parameters(self.source, self.geometry),
            "IS_MAXIMUM": True,
        }


@register
@dataclass(frozen=True)
class AvgPool(Pool):
    """The sum of each window over `divisor`, its size where 0; padding counts as zeros."""

    divisor: int = field(default=0, kw_only=True)
    name = "fixed_avg_pool"

    @property
    def divided_by(self) -> int:
        """What sums are divided by."""
        return self.divisor or self.area

    def golden(self, *data: Ints) -> Ints:
        bits = self.source.format.signed_width + self.area.bit_length()
        sums = windows(golden.wide(data[0], bits), self.geometry, 0).sum(axis=(3, 4))
        return golden.divide_cast(sums, self.source.format.frac_width, self.divided_by, self.format)

    def parameters(self) -> Mapping[str, Parameter]:
        own = {"DIVISOR": self.divisor} if self.divisor else {}
        return {
            **precision("DATA_IN_0", self.source.format),
            **result_precision(self.format),
            **geometry_parameters(self.source, self.geometry),
            **own,
        }


def mean_span(number: Fixed, area: int, divisor: int) -> Span | None:
    """The codes of exact means of `area` elements; None where they are no binary fractions."""
    if divisor & (divisor - 1):
        return None
    low, high = min(number.low * area, 0), max(number.high * area, 0)
    return Span(low, high, number.frac_width + divisor.bit_length() - 1)
