"""Pooling: the maximum or the mean of every window of an image."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.design.component import (
    Component,
    ComponentCost,
    Parameter,
    precision,
    register,
    result_precision,
    sign_parameter,
)
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Process, take
from chop.hw.design.samples import BIT, BYTE, COUNT, DOWN, KINDS, NARROW, WIDE, stream
from chop.hw.design.stream import Stream
from chop.hw.library.fixed_divide import Division
from chop.hw.library.sliding_window import (
    Pair,
    Windowed,
    WindowTwin,
    geometry_parameters,
    pair,
    pixels_of,
    windows,
)
from chop.hw.lower import Lowerer, Value, lowers
from chop.hw.lower.engine import pixel_shape
from chop.hw.reference.exact import Codes, Exact, fitted, reach
from chop.hw.reference.exact_ops import (
    Arguments,
    exact_op,
    padded,
    refuse_setting,
    sizes_of,
    window_parts,
)

SETTINGS = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
"""Positional arguments of the functions, which have no signature."""


class ReduceTwin(Twin):
    """Cycle model of the reduction: a beat for every `area` beats, `latency` cycles later."""

    name = "Reduce"

    def __init__(self, area: int, beats: int, latency: int = 0) -> None:
        self.arguments = (area, beats, latency)
        self.area, self.beats, self.latency = area, beats, latency

    def process(self) -> Process:
        phases = (take((self.area - 1) * self.beats, gives=()), take(self.beats))
        return Process(phases, latency=self.latency)


@dataclass(frozen=True)
class Pool(Windowed):
    """Pooling: one number per window and channel."""

    format: Fixed = field(kw_only=True)
    """Format of the output."""
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

    @property
    def latency(self) -> int:
        """Cycles from the last pixel of a window to the output's register."""
        return 1

    def twins(self) -> list[Twin]:
        reduce = ReduceTwin(self.area, self.geometry.beats, self.latency)
        return [WindowTwin(self.geometry), reduce]

    def cost(self) -> ComponentCost:
        bits = self.source.shape[-1] * (self.source.format.width + self.area.bit_length())
        return self.line_cost() + ComponentCost(memory_bits=bits)


@register
@dataclass(frozen=True)
class MaxPool(Pool):
    """Maximum of each window; the format stays."""

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

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(4, 6, 2, lanes=2), (2, 2), (2, 2), format=BYTE),
            cls(stream(5, 5, 3), (3, 3), (2, 2), (1, 1), format=BYTE),
            cls(stream(7, 7, 1, number=NARROW), (3, 2), (3, 3), format=NARROW),
            cls(stream(5, 5, 1, number=COUNT), (3, 3), (2, 2), (1, 1), format=COUNT),
            cls(stream(5, 5, 1, number=BIT), (2, 2), (2, 2), (1, 1), format=BIT),
        ]


@register
@dataclass(frozen=True)
class AvgPool(Pool):
    """Sum of each window over `divisor` (0: its size); padding counts as zeros.

    Without `counts_padding` the mean of what is inside the image.
    """

    divisor: int = field(default=0, kw_only=True)
    counts_padding: bool = field(default=True, kw_only=True)
    name = "fixed_avg_pool"

    def __post_init__(self) -> None:
        if self.divisor and not self.counts_padding:
            raise ConfigError(
                f"fixed_avg_pool: a mean of what is inside has no divisor, got {self.divisor}."
            )
        super().__post_init__()

    def golden(self, *data: Ints) -> Ints:
        bits = self.source.format.signed_width + self.area.bit_length()
        sums = windows(golden.wide(data[0], bits), self.geometry, 0).sum(axis=(3, 4))
        means = np.empty(sums.shape, dtype=np.int64)
        divisors = self.divisors()
        for each in np.unique(divisors):
            where = divisors == each
            means[:, where] = golden.divide_cast(
                sums[:, where], self.source.format.frac_width, int(each), self.format
            )
        return means

    @property
    def division(self) -> Division:
        """Division of a sum."""
        sums = self.source.format.signed_width + (self.area - 1).bit_length()
        area = self.divisor or self.area
        divisors = [area] if self.counts_padding else range(1, area + 1)
        return Division(sums, self.source.format.frac_width, divisors, self.format)

    @property
    def latency(self) -> int:
        return self.division.latency

    def cost(self) -> ComponentCost:
        return super().cost() + ComponentCost(
            multipliers=self.division.multipliers * self.source.lanes
        )

    def divisors(self) -> Ints:
        """Return the divisors of the sums, by output row and column."""
        if self.counts_padding:
            columns, rows = self.geometry.out_size
            return np.full((rows, columns), self.divisor or self.area)
        ones = np.ones((1, self.geometry.size[1], self.geometry.size[0], 1), dtype=np.int64)
        inside: Ints = windows(ones, self.geometry, 0).sum(axis=(3, 4))[0, :, :, 0]
        return inside

    def parameters(self) -> Mapping[str, Parameter]:
        own: dict[str, Parameter] = {"DIVISOR": self.divisor} if self.divisor else {}
        own |= {} if self.counts_padding else {"COUNTS_PADDING": False}
        own |= {"HAS_PARTS": True} if self.division.parts > 1 else {}
        return {
            **precision("DATA_IN_0", self.source.format),
            **result_precision(self.format),
            **geometry_parameters(self.source, self.geometry),
            **own,
        }

    @classmethod
    def cases(cls) -> Sequence[Component]:
        far_down = Fixed(4, -8, rounding="floor")
        return [
            cls(stream(4, 4, 4, lanes=2), (2, 2), (2, 2), format=BYTE),
            cls(stream(6, 6, 2), (3, 3), (3, 3), format=Fixed(6, 1)),
            cls(stream(6, 6, 1), (3, 2), (1, 1), (1, 1), format=WIDE),
            cls(stream(4, 4, 3, number=NARROW), (4, 4), (4, 4), format=BYTE),
            cls(stream(6, 6, 1, number=COUNT), (3, 3), (3, 3), format=DOWN),
            cls(stream(4, 4, 1), (2, 2), (2, 2), format=Fixed(10, 6)),
            cls(stream(4, 4, 1), (2, 2), (2, 2), format=BYTE, divisor=3),
            cls(stream(4, 4, 1, number=Fixed(40, 25)), (3, 1), (1, 1), format=Fixed(8, 3)),
            cls(stream(4, 4, 1, number=NARROW), (3, 1), (1, 1), format=far_down),
            cls(stream(5, 4, 2), (3, 3), (2, 1), (1, 1), format=BYTE, counts_padding=False),
            cls(stream(2, 3, 1), (4, 3), (1, 2), (2, 1), format=WIDE, counts_padding=False),
            cls(stream(3, 4, 1), (1, 2), (1, 1), (0, 1), format=BYTE, counts_padding=False),
            cls(stream(3, 4, 1), (1, 3), (1, 1), (0, 1), format=BYTE, counts_padding=False),
            cls(  # 2**K leaves 1 when it is divided by 3: the reciprocal is rounded up by most
                *(stream(3, 4, 3, number=Fixed(9, 4)), (3, 1), (1, 1), (1, 0)),
                format=BYTE,
                counts_padding=False,
            ),
            *(cls(stream(6, 6, 1), (3, 2), (3, 2), format=kind) for kind in KINDS),
        ]


def mean_span(number: Fixed, area: int, divisors: Sequence[int]) -> Span | None:
    """Return the range of sums of up to `area` elements over any of `divisors`.

    None where they are no binary fractions.
    """
    if any(divisor & (divisor - 1) for divisor in divisors):
        return None
    steps = max(divisors).bit_length() - 1
    spread = (area << steps) // min(divisors)
    low, high = min(number.low * spread, 0), max(number.high * spread, 0)
    return Span(low, high, number.frac_width + steps)


# -- from a node -----------------------------------------------------------------------------------


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
    if low.setting(node, "ceil_mode", False, SETTINGS):
        raise low.refuse(node, "ceil_mode = True", "Allowed: ceil_mode = False")
    if set(np.atleast_1d(low.setting(node, "dilation", 1, SETTINGS)).tolist()) != {1}:
        raise low.refuse(node, "a dilation", "Allowed: dilation = 1")
    kernel = low.setting(node, "kernel_size", None, SETTINGS)
    stride = low.setting(node, "stride", None, SETTINGS)
    padding = low.setting(node, "padding", 0, SETTINGS)
    stride = kernel if stride in (None, (), []) else stride
    return pair(kernel, 2), pair(stride, 2), pair(padding, 2)


@lowers("fixed_max_pool", takes_pixels=True, is_monotone=True)
def lower_max_pool(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a maximum in the operand's format."""
    if low.setting(node, "return_indices", False):
        raise low.refuse(node, "return_indices = True", "Allowed: return_indices = False")
    value, source = _pooled(low, node)
    kernel, stride, padding = _window(low, node)
    pool = MaxPool(source, kernel, stride, padding, format=source.format)
    return pixels_of(low.add(node, pool, value), pool)


@lowers("fixed_avg_pool", takes_pixels=True)
def lower_avg_pool(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a sum over a constant."""
    value, source = _pooled(low, node)
    kernel, stride, padding = _window(low, node)
    divisor = low.setting(node, "divisor_override", None) or 0
    if divisor < 0:
        raise low.refuse(node, f"divisor_override = {divisor}", "Allowed: 1 or more")
    counts = bool(low.setting(node, "count_include_pad", True) or not any(padding) or divisor)
    return _average(low, node, value, source, (kernel, stride, padding), divisor, counts)


@lowers("global_avg_pool")
def lower_global_avg_pool(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a mean over the whole image, one window."""
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
    counts_padding: bool = True,
) -> Value:
    area = window[0][0] * window[0][1]
    divisor = 0 if divisor == area else divisor

    def make(number: Fixed) -> AvgPool:
        return AvgPool(
            source, *window, format=number, divisor=divisor, counts_padding=counts_padding
        )

    divisors = [int(d) for d in np.unique(make(source.format).divisors())]
    exact = mean_span(source.format, area, divisors)
    why = f"a mean over {' or '.join(map(str, divisors))} is no binary fraction"
    pool = make(low.result_format(node, exact, why))
    return pixels_of(low.add(node, pool, value), pool)


# -- by definition ---------------------------------------------------------------------------------


def _exact_window(a: Arguments) -> tuple[list[int], list[int], list[int]]:
    if a.get("ceil_mode"):
        raise refuse_setting("ceil_mode", True, "ceil_mode = False")
    kernel = sizes_of(a["kernel_size"], 2)
    stride = kernel if a.get("stride") in (None, (), []) else sizes_of(a["stride"], 2)
    return kernel, stride, sizes_of(a.get("padding", 0), 2)


@exact_op("max_pool2d", "input kernel_size stride padding dilation ceil_mode return_indices")
def exact_max_pool(a: Arguments) -> Exact:
    """Return the maximum of each window."""
    x: Exact = a["input"]
    kernel, stride, padding = _exact_window(a)
    lowest = int(x.codes.min()) if x.codes.size else 0  # never above what is in the window
    parts = window_parts(
        padded(x.codes, padding, lowest), kernel, stride, sizes_of(a.get("dilation", 1), 2)
    )
    return x.take(np.maximum.reduce(list(parts.values())))


@exact_op(
    "avg_pool2d",
    "input kernel_size stride padding ceil_mode count_include_pad divisor_override",
)
def exact_avg_pool(a: Arguments) -> Exact:
    """Return the sum of each window over its size, a number, or its elements inside the image."""
    x: Exact = a["input"]
    kernel, stride, padding = _exact_window(a)
    total = _sum_of_parts(x, kernel, stride, padding)
    if a.get("divisor_override"):
        return _divided(total, np.array(int(a["divisor_override"])))
    if a.get("count_include_pad", True):
        return _divided(total, np.array(math.prod(kernel)))
    inside = Exact(np.ones(x.shape[-2:], dtype=np.int64))
    return _divided(total, _sum_of_parts(inside, kernel, stride, padding).codes)


def _sum_of_parts(
    x: Exact, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Exact:
    wide = fitted(x.codes, reach(x.codes) * math.prod(kernel))
    parts = window_parts(padded(wide, padding, 0), kernel, stride, (1, 1))
    return x.take(sum(parts.values()))  # type: ignore[arg-type]


def _divided(x: Exact, counts: Codes) -> Exact:
    """Return `x` divided by positive integers that broadcast with it."""
    if int(counts.min()) < 1:
        raise refuse_setting("divisor", int(counts.min()), "1 or more")
    common = math.lcm(*(int(c) for c in np.unique(counts)))
    factors = np.asarray(common // counts)
    wide = fitted(x.codes, reach(x.codes) * reach(factors))
    return x.take(wide * factors.astype(wide.dtype)) / common


@exact_op("adaptive_avg_pool2d", "input output_size")
def exact_adaptive_avg_pool(a: Arguments) -> Exact:
    """Return the means of bands of rows and columns."""
    x: Exact = a["input"]
    size = a["output_size"]
    sizes = list(size) if isinstance(size, Sequence) else [size, size]
    rows, columns = (
        _bands(n, n if bands is None else int(bands))
        for n, bands in zip(x.shape[-2:], sizes, strict=True)
    )
    wide = fitted(x.codes, reach(x.codes) * math.prod(x.shape[-2:]))
    sums = [[wide[..., r, c].sum(axis=(-2, -1)) for c in columns] for r in rows]
    codes = np.stack([np.stack(row, axis=-1) for row in sums], axis=-2)
    counts = [[(r.stop - r.start) * (c.stop - c.start) for c in columns] for r in rows]
    return _divided(x.take(codes), np.array(counts))


def _bands(size: int, count: int) -> list[slice]:
    """Return the parts of a dimension that adaptive pooling averages."""
    return [slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
