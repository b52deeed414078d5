"""Every component against its Python class: sizes × widths × parallelism × stalls."""

import math

import numpy as np
import pytest

from chop.hw.check import check_components
from chop.hw.component import COMPONENTS
from chop.hw.components import (
    Add,
    AvgPool,
    BatchNorm,
    Cast,
    Conv1d,
    Conv2d,
    Fifo,
    Fork,
    Gearbox,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Linear,
    Lut,
    MaxPool,
    Mul,
    Relu,
    Reorder,
    Skid,
    SlidingWindow,
    Sub,
)
from chop.hw.components.linear import Weights
from chop.hw.golden import Fixed
from chop.hw.stream import Stream

NARROW, BYTE, WIDE = Fixed(3, 1), Fixed(8, 4), Fixed(12, 7)
BIT, COUNT = Fixed(1, 0), Fixed(6, 3, is_signed=False)  # one bit: 0 and -1
DOWN = Fixed(5, 2, rounding="floor")
# results in every way that a number format has
KINDS = (
    DOWN,
    COUNT,
    Fixed(5, 2, narrow=True, rounding="toward_zero"),
    Fixed(5, 2, overflow="wrap", rounding="nearest_away"),
    Fixed(4, 2, is_signed=False, overflow="wrap", rounding="floor"),
    Fixed(4, -3, rounding="nearest_away"),
    Fixed(1, 1, is_signed=False),
    BIT,
)
_rng = np.random.default_rng(7)


def stream(*shape, lanes=1, number=BYTE):
    return Stream(shape, lanes, number)


def codes(number, *shape):
    return _rng.integers(number.low, number.high, shape, endpoint=True)


def weights(outputs, inputs, weight=BYTE, bias=BYTE):
    has_bias = bias is not None
    return Weights(
        codes(weight, outputs, inputs),
        weight,
        codes(bias, outputs) if has_bias else None,
        bias if has_bias else Fixed(2),
    )


def linear(inputs, outputs, in_lanes, out_lanes, *, x=BYTE, w=BYTE, b=BYTE, y=BYTE):
    return Linear(
        stream(inputs, lanes=in_lanes, number=x), weights(outputs, inputs, w, b), y, out_lanes
    )


def conv2d(rows, columns, channels, kernel, outputs, *, lanes=1, out_lanes=1, stride=1, padding=0):
    taken = stream(rows, columns, channels, lanes=lanes)
    window = weights(outputs, kernel * kernel * channels)
    pairs = ((kernel,) * 2, (stride,) * 2, (padding,) * 2)
    return Conv2d(taken, *pairs, weights=window, format=BYTE, lanes=out_lanes)


def conv1d(length, channels, kernel, outputs, *, lanes=1, out_lanes=1, stride=1, padding=0):
    taken = stream(length, channels, lanes=lanes)
    pairs = ((kernel, 1), (stride, 1), (padding, 0))
    window = weights(outputs, kernel * channels)
    return Conv1d(taken, *pairs, weights=window, format=BYTE, lanes=out_lanes)


def gelu(x):
    return [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x]


CASES = {
    "skid_buffer": [Skid(stream(7)), Skid(stream(4, lanes=4, number=WIDE)), Skid(stream(1))],
    "fifo": [Fifo(stream(12), 2), Fifo(stream(12, lanes=3), 5), Fifo(stream(6, number=NARROW), 8)],
    "stream_fork": [Fork(stream(8, lanes=2), 2), Fork(stream(5, number=NARROW), 3)],
    "gearbox": [
        Gearbox(stream(12, lanes=a, number=n), b)
        for a, b, n in (
            (1, 4, BYTE),
            (4, 1, BYTE),
            (2, 3, NARROW),
            (6, 4, BYTE),
            (3, 3, WIDE),
            (12, 2, WIDE),
        )
    ],
    "stream_reorder": [
        Reorder(
            stream(2, 6, lanes=2), tuple(np.arange(12).reshape(2, 6).T.ravel().tolist()), (6, 2)
        ),
        Reorder(stream(5, number=NARROW), (4, 2, 0, 1, 3), (5,)),
        Reorder(stream(8, lanes=8), (7, 6, 5, 4, 3, 2, 1, 0), (8,)),
    ],
    "stream_cast": [
        Cast(stream(64, lanes=n, number=a), b)
        for a, b, n in (
            (WIDE, BYTE, 2),
            (BYTE, NARROW, 4),
            (NARROW, WIDE, 1),
            (WIDE, Fixed(5, 7), 1),
            (BYTE, Fixed(8, -2), 1),
            # more bits dropped than there are
            (NARROW, Fixed(3, -3), 1),
            (NARROW, Fixed(3, -2), 1),
            (NARROW, Fixed(3, -9, rounding="floor"), 1),
            (BYTE, Fixed(6, -20, rounding="nearest_away"), 1),
            (COUNT, Fixed(4, -4, is_signed=False), 1),
            (BIT, Fixed(4, 2), 1),
            (Fixed(62, 40), Fixed(8, 4), 1),
            (BYTE, Fixed(62, 50), 1),
            *((number, kind, 1) for number in (BYTE, COUNT, Fixed(9, 1)) for kind in KINDS),
        )
    ],
    "fixed_relu": [
        Relu(stream(16, lanes=4), BYTE),
        Relu(stream(9, number=NARROW), NARROW),
        Relu(stream(9, number=COUNT), COUNT),
        Relu(stream(9, number=BIT), BIT),
    ],
    "fixed_leaky_relu": [
        LeakyRelu(stream(64, lanes=4), BYTE),
        LeakyRelu(stream(64, lanes=2, number=WIDE), BYTE, slope=1, slope_frac=2),
        LeakyRelu(stream(64, number=NARROW), WIDE, slope=3, slope_frac=0),
        LeakyRelu(stream(64, number=COUNT), DOWN),
        LeakyRelu(stream(64), COUNT, slope=5764607523034235, slope_frac=59),
    ],
    "fixed_hardsigmoid": [
        HardSigmoid(stream(128, lanes=4), BYTE),
        HardSigmoid(stream(128, lanes=2, number=WIDE), Fixed(8, 7)),
        HardSigmoid(stream(128, number=NARROW), Fixed(6, 2)),
        HardSigmoid(stream(128, number=COUNT), Fixed(6, 4, is_signed=False, rounding="floor")),
        HardSigmoid(stream(64, number=Fixed(9, 7)), Fixed(4, 1, rounding="nearest_away")),
    ],
    "fixed_hardswish": [
        HardSwish(stream(128, lanes=4), BYTE),
        HardSwish(stream(128, lanes=2, number=WIDE), Fixed(8, 4)),
        HardSwish(stream(128, number=Fixed(6, 0)), Fixed(6, 2)),
        HardSwish(stream(128, number=COUNT), DOWN),
        HardSwish(stream(128, number=WIDE), Fixed(5, -2, rounding="toward_zero")),
        HardSwish(stream(64, number=Fixed(24, 16)), Fixed(20, 14)),
    ],
    "fixed_lut": [
        Lut(stream(64, lanes=4), BYTE, np.tanh),
        Lut(stream(64, lanes=2), Fixed(6, 5), lambda x: 1 / (1 + np.exp(-x))),
        Lut(stream(64, number=NARROW), WIDE, gelu),
        Lut(stream(64, number=COUNT), DOWN, np.tanh),
        Lut(stream(8, number=BIT), COUNT, np.exp),
    ],
    "fixed_add": [
        Add(stream(32, lanes=4), stream(32, lanes=4), BYTE),
        Add(stream(32, number=COUNT), stream(32), Fixed(11, 4)),
        Add(stream(32), stream(32, number=COUNT), DOWN, alpha=3, alpha_frac=1),
        Add(stream(32, number=COUNT), stream(32, number=BIT), COUNT, alpha=0),
        Add(stream(32), stream(32), BYTE, alpha=3602879701896397, alpha_frac=55),
        Add(stream(32, number=WIDE), stream(32, number=NARROW), BYTE),
    ],
    "fixed_sub": [
        Sub(stream(32, lanes=4), stream(32, lanes=4), BYTE),
        Sub(stream(32, number=COUNT), stream(32), Fixed(11, 4)),
        Sub(stream(32), stream(32, number=COUNT), DOWN, alpha=3, alpha_frac=1),
        Sub(stream(32, number=COUNT), stream(32, number=BIT), COUNT, alpha=0),
        Sub(stream(32), stream(32), BYTE, alpha=3602879701896397, alpha_frac=55),
        Sub(stream(32, number=NARROW), stream(32, number=WIDE), WIDE),
    ],
    "fixed_mul": [
        Mul(stream(32, lanes=4), stream(32, lanes=4), BYTE),
        Mul(stream(32, number=COUNT), stream(32, number=BIT), Fixed(8, 3)),
        Mul(stream(32, number=COUNT), stream(32, number=COUNT), Fixed(13, 6)),
        Mul(stream(32, number=Fixed(40, 20)), stream(32, number=Fixed(40, 20)), DOWN),
        Mul(stream(32, number=NARROW), stream(32, number=WIDE), BYTE),
    ],
    "fixed_batch_norm": [
        BatchNorm(stream(3, 8, lanes=4), BYTE, codes(BYTE, 8), codes(BYTE, 8), BYTE, BYTE),
        BatchNorm(stream(5, 3), BYTE, codes(BYTE, 3), codes(WIDE, 3), BYTE, Fixed(12, 11)),
        BatchNorm(stream(5, 2, number=COUNT), DOWN, codes(WIDE, 2), codes(BYTE, 2), WIDE, BYTE),
    ],
    # folds of 1, 2 and more in each direction; the corner (1, n) finds an early bias
    "fixed_linear": [
        linear(4, 8, 4, 4),
        linear(4, 8, 4, 2),
        linear(4, 2, 4, 2),
        linear(6, 4, 3, 4),
        linear(8, 4, 2, 2, x=NARROW, w=NARROW, b=NARROW),
        linear(6, 6, 1, 1, w=NARROW, b=None),
        linear(12, 3, 6, 3, b=WIDE, y=WIDE),
        linear(10, 6, 5, 2, b=Fixed(12, 11)),
        linear(8, 2, 8, 1, x=WIDE, w=WIDE, y=Fixed(6, 1)),
        linear(5, 3, 1, 3, y=Fixed(16, 10)),
        linear(6, 4, 2, 2, w=BIT, b=BIT, y=Fixed(12, 4)),
        linear(6, 4, 3, 2, x=COUNT, w=COUNT, b=COUNT, y=DOWN),
        linear(6, 4, 6, 1, x=COUNT, y=COUNT),
        linear(4, 4, 2, 2, w=COUNT, y=Fixed(5, 1, narrow=True)),
        linear(4, 4, 2, 2, y=Fixed(5, 1, overflow="wrap", rounding="nearest_away")),
        linear(4, 2, 2, 1, x=Fixed(32, 16), w=Fixed(32, 20), b=Fixed(32, 30), y=Fixed(32, 12)),
        linear(4, 2, 2, 1, x=NARROW, w=NARROW, b=None, y=Fixed(3, -12)),
        linear(4, 2, 2, 1, x=NARROW, w=NARROW, b=None, y=Fixed(3, -12, rounding="floor")),
        linear(4, 2, 2, 1, x=BIT, w=BIT, b=None, y=Fixed(5, 0)),
    ],
    "sliding_window": [
        SlidingWindow(stream(5, 4, 1), (3, 3), padding=(1, 1)),
        SlidingWindow(stream(6, 5, 4, lanes=2), (2, 3), (2, 1), (0, 1)),
        SlidingWindow(stream(7, 7, 2), (1, 1), (3, 3)),
    ],
    "fixed_conv2d": [
        conv2d(5, 5, 2, 3, 4, lanes=2, out_lanes=2, padding=1),
        conv2d(6, 6, 1, 3, 2, stride=2),
        conv2d(4, 4, 4, 1, 2, lanes=4, out_lanes=1),
    ],
    "fixed_conv1d": [
        conv1d(9, 2, 3, 4, lanes=2, out_lanes=4, padding=1),
        conv1d(10, 3, 4, 2, stride=3, padding=2),
    ],
    "fixed_max_pool": [
        MaxPool(stream(4, 6, 2, lanes=2), (2, 2), (2, 2), format=BYTE),
        MaxPool(stream(5, 5, 3), (3, 3), (2, 2), (1, 1), format=BYTE),
        MaxPool(stream(7, 7, 1, number=NARROW), (3, 2), (3, 3), format=NARROW),
        MaxPool(stream(5, 5, 1, number=COUNT), (3, 3), (2, 2), (1, 1), format=COUNT),
        MaxPool(stream(5, 5, 1, number=BIT), (2, 2), (2, 2), (1, 1), format=BIT),
    ],
    "fixed_avg_pool": [
        AvgPool(stream(4, 4, 4, lanes=2), (2, 2), (2, 2), format=BYTE),
        AvgPool(stream(6, 6, 2), (3, 3), (3, 3), format=Fixed(6, 1)),
        AvgPool(stream(6, 6, 1), (3, 2), (1, 1), (1, 1), format=WIDE),
        AvgPool(stream(4, 4, 3, number=NARROW), (4, 4), (4, 4), format=BYTE),
        AvgPool(stream(6, 6, 1, number=COUNT), (3, 3), (3, 3), format=DOWN),
        AvgPool(stream(4, 4, 1), (2, 2), (2, 2), format=Fixed(10, 6)),
        AvgPool(stream(4, 4, 1), (2, 2), (2, 2), format=BYTE, divisor=3),
        AvgPool(stream(4, 4, 1, number=Fixed(40, 25)), (3, 1), (1, 1), format=Fixed(8, 3)),
        AvgPool(
            stream(4, 4, 1, number=NARROW), (3, 1), (1, 1), format=Fixed(4, -8, rounding="floor")
        ),
        *(AvgPool(stream(6, 6, 1), (3, 2), (3, 2), format=kind) for kind in KINDS),
    ],
}


def test_the_cases_cover_every_component():
    assert set(CASES) == set(COMPONENTS)


@pytest.mark.sim
@pytest.mark.parametrize("name", sorted(CASES))
def test_component_is_exact_in_values_and_cycles(name, tmp_path):
    for verdict in check_components(CASES[name], tmp_path):
        assert verdict.is_exact
