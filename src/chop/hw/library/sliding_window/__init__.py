"""Sliding windows of an image, for convolution and pooling.

Images stream by row, column, channel: the shape of their stream is (rows, columns, channels), of a
sequence (positions, channels).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from chop.errors import ConfigError
from chop.hw.arith.golden import Ints
from chop.hw.design.component import Component, ComponentCost, Parameter, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.design import Wire
from chop.hw.design.process import Phase, Process
from chop.hw.design.samples import stream
from chop.hw.design.stream import Stream
from chop.hw.lower import Value
from chop.hw.lower.engine import pixel_order

Pair = tuple[int, int]
READ_LATENCY = 2
"""Registers behind the address of a window's beat: the memory's and one more."""


@dataclass(frozen=True)
class Geometry:
    """Window over an image; pairs are (columns, rows), `beats` per pixel."""

    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    beats: int = 1

    @property
    def out_size(self) -> tuple[int, int]:
        """Columns and rows of windows."""
        columns, rows = (
            (n + 2 * p - k) // s + 1
            for n, k, s, p in zip(self.size, self.kernel, self.stride, self.padding, strict=True)
        )
        return columns, rows

    @property
    def lines(self) -> int:
        """Rows that `sliding_window` keeps."""
        return max(self.kernel[1], self.stride[1], self.last_freed) + self.stride[1]

    @property
    def last_top(self) -> int:
        """Row of the last windows."""
        return (self.out_size[1] - 1) * self.stride[1] - self.padding[1]

    @property
    def last_freed(self) -> int:
        """Rows that the last windows leave behind."""
        return self.size[1] - max(self.last_top, 0)


class WindowTwin(Twin):
    """Cycle model: beats of the image that have come, and the next window beat."""

    name = "Window"

    def __init__(self, geometry: Geometry) -> None:
        self.arguments = astuple(geometry)
        self.geometry = geometry

    @classmethod
    def made(cls, *arguments: Any) -> Twin:
        return cls(Geometry(*arguments))

    def process(self) -> Process:
        return _window_process(self.geometry)


@lru_cache(maxsize=64)
def _window_process(geometry: Geometry) -> Process:
    row = geometry.size[0] * geometry.beats
    phases = []
    for line, beat, freed in _window_schedule(geometry):
        here = line * row + beat + 1 if line >= 0 else 1  # padding, once the image has begun
        phases.append(Phase(needs={0: max(here, freed * row)}, frees={0: freed * row}, gives=(0,)))
    return Process(phases, slots=(geometry.lines * row,), latency=READ_LATENCY)


def _window_schedule(g: Geometry) -> list[tuple[int, int, int]]:
    """Return line, beat (line -1: padding) and freed lines of each window beat."""
    schedule = []
    for out_row in range(g.out_size[1]):
        top = out_row * g.stride[1] - g.padding[1]
        first = max(top, 0)
        for out_column in range(g.out_size[0]):
            left = out_column * g.stride[0] - g.padding[0]
            for row in range(top, top + g.kernel[1]):
                for column in range(left, left + g.kernel[0]):
                    inside = 0 <= row < g.size[1] and 0 <= column < g.size[0]
                    line = row - first if inside else -1
                    schedule += [(line, column * g.beats + b, 0) for b in range(g.beats)]
        freed = g.last_freed if top == g.last_top else max(top + g.stride[1], 0) - first
        schedule[-1] = (*schedule[-1][:2], freed)
    return schedule


def geometry_of(source: Stream, kernel: Pair, stride: Pair, padding: Pair) -> Geometry:
    """Return the geometry of windows over images of `source`; a sequence has one row."""
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
    """Return windows as (tensors, out rows, out columns, kernel rows, kernel columns, channels)."""
    images = x.reshape(len(x), g.size[1], g.size[0], -1)
    (columns, rows) = g.padding
    padded = np.pad(images, ((0, 0), (rows, rows), (columns, columns), (0, 0)), constant_values=pad)
    views = np.lib.stride_tricks.sliding_window_view(padded, g.kernel[::-1], axis=(1, 2))
    return views[:, :: g.stride[1], :: g.stride[0]].transpose(0, 1, 2, 4, 5, 3)


def geometry_parameters(source: Stream, g: Geometry) -> dict[str, Parameter]:
    """Return the parameters of image, window, stride and padding; a sequence has no rows."""
    sizes: dict[str, Parameter] = {
        "DATA_IN_0_TENSOR_SIZE_DIM_0": source.shape[-1],
        "DATA_IN_0_TENSOR_SIZE_DIM_1": source.shape[-2],
        "DATA_IN_0_PARALLELISM_DIM_0": source.lanes,
    }
    if len(source.shape) == 3:
        sizes["DATA_IN_0_TENSOR_SIZE_DIM_2"] = source.shape[0]
    for name, pair in (
        ("KERNEL_SIZE", g.kernel),
        ("STRIDE", g.stride),
        ("PADDING", g.padding),
    ):
        for dim in range(len(source.shape) - 1):
            sizes[f"{name}_DIM_{dim}"] = pair[dim]
    return sizes


@dataclass(frozen=True)
class Windowed(Component):
    """Base of convolution and pooling; `kernel`, `stride`, `padding` are (columns, rows)."""

    source: Stream
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)

    @property
    def geometry(self) -> Geometry:
        """Geometry of the windows."""
        return geometry_of(self.source, self.kernel, self.stride, self.padding)

    @property
    def window_beats(self) -> int:
        """Beats of all windows of one image."""
        g = self.geometry
        return g.out_size[0] * g.out_size[1] * g.kernel[0] * g.kernel[1] * g.beats

    def image_shape(self, channels: int) -> tuple[int, ...]:
        """Return the shape of the output stream."""
        columns, rows = self.geometry.out_size
        leading = (rows, columns) if len(self.source.shape) == 3 else (columns,)
        return (*leading, channels)

    def cycles(self) -> int:
        return max(self.source.beats, self.window_beats)

    def line_cost(self) -> ComponentCost:
        """Return the memory of the line buffer."""
        row_bits = self.geometry.size[0] * self.source.shape[-1] * self.source.format.width
        return ComponentCost(memory_bits=self.geometry.lines * row_bits)


@register
@dataclass(frozen=True)
class SlidingWindow(Windowed):
    """Windows alone: a vector of kernel rows x kernel columns x channels per pixel."""

    module = "sliding_window"
    has_sums = False

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

    def twins(self) -> list[Twin]:
        return [WindowTwin(self.geometry)]

    def cost(self) -> ComponentCost:
        return self.line_cost()

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(5, 4, 1), (3, 3), padding=(1, 1)),
            cls(stream(6, 5, 4, lanes=2), (2, 3), (2, 1), (0, 1)),
            cls(stream(7, 7, 2), (1, 1), (3, 3)),
            cls(stream(6, 4, 1), (1, 3), padding=(0, 2)),  # two rows of windows begin in padding
        ]


# -- from a node -----------------------------------------------------------------------------------


def pair(value: Any, dims: int) -> Pair:
    """Return (columns, rows) of a size that is one number or (rows, columns)."""
    sizes = [int(v) for v in value] if isinstance(value, tuple | list) else [int(value)] * dims
    return (sizes[-1], sizes[0] if dims == 2 else 1)


def pixels_of(wire: Wire, component: Component) -> Value:
    """Return a value that is streamed pixel by pixel, from the shape of its stream."""
    stream_shape = component.output.shape
    shape = (stream_shape[-1], *stream_shape[:-1])
    return Value(wire, shape, pixel_order(shape))
