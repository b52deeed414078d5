"""Components drawn at random: what the area and clock models are fitted on and held against.

An instance is known by its kind and a number: `make("fixed_linear", 7)` is the same one everywhere.
Sizes and formats are those of networks that fit the parts of `chop.hw.flow.route.parts`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from chop.hw.area.area_model import unmodelled
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.arith.mxint_wire import on_wire
from chop.hw.design.component import COMPONENTS, Component
from chop.hw.design.stream import Stream, divisors
from chop.hw.library import components as parts
from chop.hw.library.fixed_linear import weight_codes
from chop.hw.library.fixed_norm import Affine
from chop.hw.library.fixed_piecewise import lines_of
from chop.hw.streams.stream_route import Replay
from chop.nn.quantizers.mxint import MXInt

WIDTHS = (4, 5, 6, 7, 8, 8, 8, 10, 12, 16)
CLOCKS = (100.0, 100.0, 100.0, 100.0, 150.0, 50.0)
"""That registers are chosen for."""
Make = Callable[["Draw"], Component]


class Draw:
    """Random choices of one instance."""

    def __init__(self, seed: list[int]) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, *choices: Any) -> Any:
        """One of them."""
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, probability: float) -> bool:
        """Whether something happens that does so with `probability`."""
        return bool(self.rng.random() < probability)

    def number(self, low: int, high: int) -> int:
        """A whole number between two, small ones as often as large ones."""
        return round(float(np.exp(self.rng.uniform(np.log(low), np.log(high)))))

    def format(self, *widths: int, is_signed: bool | None = None) -> Fixed:
        """A fixed-point format."""
        width = self.one(*(widths or WIDTHS))
        signed = not self.chance(0.15) if is_signed is None else is_signed
        frac = int(np.clip(width // 2 + self.rng.integers(-1, 3), 0, width))
        rounding = "floor" if self.chance(0.1) else "nearest_even"
        return Fixed(width, frac, signed, rounding=rounding)

    def lanes(self, size: int, most: int = 8) -> int:
        """Lanes that divide `size`."""
        return int(self.one(*(d for d in divisors(size) if d <= most)))

    def codes(self, number: Fixed, *shape: int) -> Ints:
        """Numbers as those of trained layers: most of them small."""
        spread = (number.high - number.low) / self.one(4, 6, 8)
        middle = 0 if number.is_signed else number.high / 3
        drawn = np.rint(self.rng.normal(middle, spread, shape))
        return np.clip(drawn, number.low, number.high).astype(np.int64)

    def stream(self, *shape: int, number: Fixed | None = None, most: int = 8) -> Stream:
        """A stream of `shape`."""
        return Stream(shape, self.lanes(shape[-1], most), number or self.format())

    def size(self) -> int:
        """Channels of a layer."""
        return int(self.one(4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64))

    def weights(self, outputs: int, inputs: int, most: int = 12) -> parts.Weights:
        """Of a layer."""
        number = self.format(*(w for w in WIDTHS if w <= most), is_signed=True)
        matrix = self.codes(number, outputs, inputs)
        if self.chance(0.2):
            return parts.Weights(matrix, number)
        bias = Fixed(number.width, number.frac_width)
        return parts.Weights(matrix, number, self.codes(bias, outputs), bias)


def _linear(d: Draw) -> Component:
    inputs, outputs = d.size(), d.size()
    source = d.stream(inputs)
    return parts.Linear(source, d.weights(outputs, inputs), d.format(), d.lanes(outputs))


def _external(d: Draw) -> Component:
    inputs, outputs = d.size(), d.size()
    weights = d.weights(outputs, inputs).external()
    return parts.ExternalLinear(d.stream(3, inputs), weights, d.format(), d.lanes(outputs, 4))


def _shift_add(d: Draw) -> Component:
    inputs, outputs = int(d.one(4, 6, 8, 10, 12, 16)), int(d.one(2, 4, 6, 8, 10, 12, 16))
    source = Stream((inputs,), inputs, d.format(4, 5, 6, 7, 8, 8, 10))
    weights = d.weights(outputs, inputs, most=8)
    return parts.ShiftAdd(source, weights, d.format(), d.one(1, 2, 2, 3))


def _window(d: Draw, least: int = 1) -> dict[str, Any]:
    rows, channels = int(d.one(6, 7, 8, 10, 12, 14, 16)), int(d.one(1, 2, 3, 4, 6, 8, 16))
    kernel = int(d.one(*range(least, 5)))
    stride = int(d.one(1, 1, 2, kernel))
    padding = int(d.one(0, min(1, kernel - 1)))
    return {
        "source": d.stream(rows, int(d.one(rows, rows, 5, 9)), channels),
        "kernel": (kernel, kernel),
        "stride": (stride, stride),
        "padding": (padding, padding),
    }


def _conv2d(d: Draw) -> Component:
    told = _window(d)
    outputs = int(d.one(2, 4, 6, 8, 12, 16))
    inputs = told["kernel"][0] ** 2 * told["source"].shape[-1]
    weights = d.weights(outputs, inputs)
    return parts.Conv2d(**told, weights=weights, format=d.format(), lanes=d.lanes(outputs, 4))


def _conv1d(d: Draw) -> Component:
    length, channels, kernel = d.number(8, 40), int(d.one(1, 2, 4, 6, 8)), int(d.one(2, 3, 4, 5))
    outputs = int(d.one(2, 4, 8, 12))
    return parts.Conv1d(
        d.stream(length, channels), (kernel, 1), (int(d.one(1, 1, 2)), 1), (int(d.one(0, 1)), 0),
        weights=d.weights(outputs, kernel * channels), format=d.format(),
        lanes=d.lanes(outputs, 4),
    )  # fmt: skip


def _max_pool(d: Draw) -> Component:
    told = _window(d, 2)
    return parts.MaxPool(**told, format=told["source"].format)


def _avg_pool(d: Draw) -> Component:
    return parts.AvgPool(**_window(d, 2), format=d.format(), counts_padding=d.chance(0.8))


def _sliding_window(d: Draw) -> Component:
    return parts.SlidingWindow(**_window(d))


def _matmul(d: Draw) -> Component:
    rows, inner, columns = (int(d.one(4, 6, 8, 12, 16, 17, 24)) for _ in range(3))
    is_transposed, heads = d.chance(0.5), int(d.one(1, 2, 4))
    lanes = (d.lanes(inner, 4), d.lanes(columns, 4))
    shape = (columns, inner) if is_transposed else (inner, columns)
    left = Stream((heads, rows, inner), lanes[0], d.format())
    right = Stream((heads, *shape), lanes[0 if is_transposed else 1], d.format())
    return parts.Matmul(left, right, d.format(), is_transposed, lanes[1])


def _binary(kind: type[parts.ElementwiseBinary]) -> Make:
    def make(d: Draw) -> Component:
        left = d.stream(24)
        return kind(left, Stream(left.shape, left.lanes, d.format()), d.format())

    return make


def _constant(d: Draw) -> Component:
    left = d.stream(int(d.one(4, 8, 16)), int(d.one(4, 8, 16)))
    right = Stream(left.shape, left.lanes, d.format(4, 5, 6, 7, 8, 8, 10))
    kind = d.one(parts.Add, parts.Sub, parts.Mul)
    size = int(d.one(1, left.elements))
    return parts.WithConstant(kind(left, right, d.format()), d.codes(right.format, size))


def _batch_norm(d: Draw) -> Component:
    channels = int(d.one(4, 8, 12, 16, 32))
    weight, bias = d.format(is_signed=True), d.format(is_signed=True)
    source = d.stream(8, channels)
    constants = (d.codes(weight, channels), d.codes(bias, channels))
    return parts.BatchNorm(source, d.format(), *constants, weight, bias)


def _unary(kind: type[parts.Unary]) -> Make:
    def make(d: Draw) -> Component:
        number = d.format()
        return kind(d.stream(24, number=number), d.format())

    return make


def _relu(d: Draw) -> Component:
    source = d.stream(24)
    return parts.Relu(source, source.format)


def _clamp(d: Draw) -> Component:
    """Bounds inside the range of the source, also one alone; ReLU6 is one in three of them."""
    source = d.stream(24)
    low, high = sorted(
        d.rng.uniform(-0.9, 0.9, 2) * source.format.high / 2**source.format.frac_width
    )
    least, most = d.one((0.0, 6.0), (float(low), float(high)), (None, float(high)))
    return parts.Clamp(source, d.format(), least, most)


def _argmax(d: Draw) -> Component:
    size = int(d.one(2, 3, 4, 5, 8, 10, 10, 16, 24))
    return parts.ArgMax(Stream((int(d.one(1, 4)), size), size, d.format()))


def _leaky(d: Draw) -> Component:
    return parts.LeakyRelu(d.stream(24), d.format(), int(d.one(1, 3, 41, 13)), int(d.one(4, 7, 12)))


def _prelu(d: Draw) -> Component:
    source, number = d.stream(8, int(d.one(4, 8, 12, 16, 32))), d.format(is_signed=True)
    return parts.PRelu(source, d.format(), d.codes(number, source.shape[-1]), number)


def _lut(d: Draw) -> Component:
    source = d.stream(24, number=d.format(4, 5, 6, 7, 8, 8, 9, 10, 11), most=4)
    function = d.one(np.tanh, lambda x: 1 / (1 + np.exp(-x)), lambda x: x / (1 + np.exp(-x)))
    return parts.Lut(source, d.format(), function)


def _piecewise(d: Draw) -> Component:
    number, out = d.format(12, 13, 14, 16), d.format(6, 8, 10, 12, 16)
    function = d.one(torch.nn.functional.gelu, torch.tanh, torch.sigmoid)
    return parts.Piecewise(
        d.stream(24, number=number, most=4), out, lines_of(function, number, out)
    )


def _embedding(d: Draw) -> Component:
    rows, size = d.number(4, 128), int(d.one(4, 8, 16, 32))
    number = Fixed(max(1, (rows - 1).bit_length()), 0, is_signed=False)
    table = d.format()
    return parts.Embedding(
        Stream((8,), 1, number), d.codes(table, rows, size), table, d.lanes(size, 4)
    )


def _norm(kind: type[parts.Norm]) -> Make:
    def make(d: Draw) -> Component:
        size = int(d.one(4, 6, 8, 12, 16, 24, 32, 64))
        weight, bias = d.format(is_signed=True), d.format(is_signed=True)
        affine = Affine(d.codes(weight, size), weight)
        if d.chance(0.7) and kind is parts.LayerNorm:
            affine = Affine(affine.weight, weight, d.codes(bias, size), bias)
        source = d.stream(4, size, most=4, number=d.format(6, 8, 8, 10, 12))
        return kind(source, affine, d.format())

    return make


def _softmax(d: Draw) -> Component:
    size = int(d.one(4, 5, 8, 10, 16, 17, 24, 32))
    source = d.stream(4, size, most=4, number=d.format(6, 8, 8, 10, 12, 14))
    out = Fixed(int(d.one(6, 8, 8, 12)), 7, is_signed=False)
    return parts.Softmax(source, out, has_mask=d.chance(0.3))


def _gearbox(d: Draw) -> Component:
    size = int(d.one(12, 24, 32, 36))
    source = d.stream(size)
    return parts.Gearbox(source, d.lanes(size, 12))


def _cast(d: Draw) -> Component:
    source = d.stream(24, number=d.format(6, 8, 10, 12, 16, 20, 24))
    return parts.Cast(source, d.format())


def _fork(d: Draw) -> Component:
    return parts.Fork(d.stream(24), int(d.one(2, 2, 3, 4)))


def _fifo(d: Draw) -> Component:
    return parts.Fifo(d.stream(24), d.number(2, 400), d.chance(0.3))


def _replay(d: Draw) -> Component:
    return Replay(d.stream(d.number(2, 16), d.size(), most=4), int(d.one(2, 3, 4)))


def _skid(d: Draw) -> Component:
    return parts.Skid(d.stream(24))


def _reorder(d: Draw) -> Component:
    rows, columns = int(d.one(4, 6, 8, 12)), int(d.one(4, 8, 12, 16))
    source = d.stream(rows, columns, most=4)
    if d.chance(0.5):
        order = np.arange(rows * columns).reshape(rows, columns).T
    else:
        lanes, half = source.lanes, rows // 2
        order = np.arange(rows * columns).reshape(2, half, columns // lanes, lanes)
        order = order.transpose(1, 0, 2, 3)
    flat = tuple(order.reshape(-1).tolist())
    return parts.Reorder(source, flat, (rows * columns,))


def _slice(d: Draw) -> Component:
    rows, columns = d.number(2, 20), int(d.one(4, 8, 12))
    source = Stream((rows * columns,), d.lanes(columns), d.format())
    kept = int(d.rng.integers(1, rows + 1))
    first = int(d.rng.integers(0, rows - kept + 1))
    return parts.Slice(source, first * columns, (kept * columns,))


def _concat(d: Draw) -> Component:
    columns, number = int(d.one(4, 8, 12)), d.format()
    lanes = d.lanes(columns, 4)
    a, b = d.number(1, 16), d.number(1, 16)
    left, right = (Stream((rows, columns), lanes, number) for rows in (a, b))
    constant = d.codes(number, b * columns) if d.chance(0.4) else None
    blocks = (a * columns, b * columns)
    return parts.Concat(left, right, blocks, (a + b, columns), d.chance(0.5), constant)


def _block(d: Draw, size: int) -> MXInt:
    blocks = [b for b in (2, 4, 8, 16) if size % b == 0]
    return MXInt(int(d.one(4, 6, 8)), block_size=int(d.one(*blocks)))


def _to_mxint(d: Draw) -> Component:
    size = int(d.one(8, 16, 24, 32))
    number = _block(d, size)
    source = Stream((4, size), d.lanes(number.block_size, 4), d.format(8, 10, 12, 16))
    return parts.ToMxint(source, number)


def _from_mxint(d: Draw) -> Component:
    size = int(d.one(8, 16, 24, 32))
    number = _block(d, size)
    wire = on_wire(number, d.format(10, 12, 16, is_signed=True), size)
    return parts.FromMxint(Stream((4, size), d.lanes(number.block_size, 4), wire), d.format())


def _block_linear(d: Draw) -> Component:
    inputs, outputs = int(d.one(8, 16, 24, 32)), int(d.one(4, 8, 16))
    number = _block(d, inputs)
    wire, matrix = weight_codes(number, d.rng.normal(0, 1, (outputs, inputs)))
    bias = d.format(6, 8, 12, is_signed=True)
    weights = parts.BlockWeights(matrix, wire, d.codes(bias, outputs), bias)
    data = on_wire(number, d.format(10, 12, 16, is_signed=True), inputs)
    source = Stream((2, inputs), d.lanes(number.block_size, 4), data)
    return parts.BlockLinear(source, weights, d.format(), d.lanes(outputs, 4))


def _block_matmul(d: Draw) -> Component:
    rows, inner, columns = int(d.one(4, 8)), int(d.one(8, 16)), int(d.one(4, 8, 12))
    number = _block(d, inner)
    wire = on_wire(number, d.format(10, 12, 16, is_signed=True), inner)
    lanes = d.lanes(number.block_size, 4)
    left, right = (Stream((1, n, inner), lanes, wire) for n in (rows, columns))
    return parts.BlockMatmul(left, right, d.format(), d.lanes(columns, 2))


GRID: dict[str, tuple[int, Make]] = {
    "fixed_linear": (90, _linear),
    "fixed_linear_external": (25, _external),
    "fixed_shift_add": (45, _shift_add),
    "fixed_conv2d": (60, _conv2d),
    "fixed_conv1d": (25, _conv1d),
    "fixed_matmul": (45, _matmul),
    "fixed_max_pool": (45, _max_pool),
    "fixed_avg_pool": (100, _avg_pool),
    "sliding_window": (55, _sliding_window),
    "fixed_add": (60, _binary(parts.Add)),
    "fixed_sub": (40, _binary(parts.Sub)),
    "fixed_mul": (65, _binary(parts.Mul)),
    "fixed_constant_arithmetic": (125, _constant),
    "fixed_batch_norm": (60, _batch_norm),
    "fixed_relu": (10, _relu),
    "fixed_clamp": (20, _clamp),
    "fixed_argmax": (20, _argmax),
    "fixed_leaky_relu": (75, _leaky),
    "fixed_prelu": (30, _prelu),
    "fixed_hardsigmoid": (50, _unary(parts.HardSigmoid)),
    "fixed_hardswish": (50, _unary(parts.HardSwish)),
    "fixed_lut": (80, _lut),
    "fixed_piecewise": (55, _piecewise),
    "fixed_embedding": (75, _embedding),
    "fixed_layer_norm": (38, _norm(parts.LayerNorm)),
    "fixed_rms_norm": (18, _norm(parts.RmsNorm)),
    "fixed_softmax": (35, _softmax),
    "gearbox": (80, _gearbox),
    "stream_cast": (70, _cast),
    "stream_fork": (15, _fork),
    "fifo": (80, _fifo),
    "stream_replay": (35, _replay),
    "skid_buffer": (8, _skid),
    "stream_reorder": (60, _reorder),
    "stream_slice": (55, _slice),
    "stream_concat": (45, _concat),
    "fixed_to_mxint": (45, _to_mxint),
    "mxint_to_fixed": (65, _from_mxint),
    "mxint_linear": (55, _block_linear),
    "mxint_matmul": (25, _block_matmul),
}
"""How many instances of each kind there are, and how one is drawn."""


def make(kind: str, number: int) -> Component:
    """Instance `number` of a kind."""
    draw = Draw([zlib.crc32(kind.encode()), number])
    component = GRID[kind][1](draw).for_clock(draw.one(*CLOCKS))
    assert component.kind == kind, (component.kind, kind)
    return component


def unlisted() -> list[str]:
    """Components of the library that no grid knows and that are not known to be missing."""
    same = {"fixed_conv1d_external", "fixed_conv2d_external"}  # as the ones with memories
    # by the coefficients that all kinds have in common
    counted = {"whole_window"}
    missing = {cls.name or cls.module for cls in unmodelled()}
    library = {name for name in COMPONENTS if COMPONENTS[name].__module__.startswith("chop.")}
    return sorted(library - {*GRID} - same - counted - missing)
