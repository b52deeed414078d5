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
        )
    ],
    "fixed_relu": [Relu(stream(16, lanes=4), BYTE), Relu(stream(9, number=NARROW), NARROW)],
    "fixed_leaky_relu": [
        LeakyRelu(stream(64, lanes=4), BYTE),
        LeakyRelu(stream(64, lanes=2, number=WIDE), BYTE, slope=1, slope_frac=2),
        LeakyRelu(stream(64, number=NARROW), WIDE, slope=3, slope_frac=0),
    ],
    "fixed_hardsigmoid": [
        HardSigmoid(stream(128, lanes=4), BYTE),
        HardSigmoid(stream(128, lanes=2, number=WIDE), Fixed(8, 7)),
        HardSigmoid(stream(128, number=NARROW), Fixed(6, 2)),
    ],
    "fixed_hardswish": [
        HardSwish(stream(128, lanes=4), BYTE),
        HardSwish(stream(128, lanes=2, number=WIDE), Fixed(8, 4)),
        HardSwish(stream(128, number=Fixed(6, 0)), Fixed(6, 2)),
    ],
    "fixed_lut": [
        Lut(stream(64, lanes=4), BYTE, np.tanh),
        Lut(stream(64, lanes=2), Fixed(6, 5), lambda x: 1 / (1 + np.exp(-x))),
        Lut(stream(64, number=NARROW), WIDE, gelu),
    ],
    "fixed_add": [
        Add(stream(32, lanes=4), stream(32, lanes=4), BYTE),
        Add(stream(32, number=WIDE), stream(32, number=NARROW), BYTE),
    ],
    "fixed_sub": [
        Sub(stream(32, lanes=4), stream(32, lanes=4), BYTE),
        Sub(stream(32, number=NARROW), stream(32, number=WIDE), WIDE),
    ],
    "fixed_mul": [
        Mul(stream(32, lanes=4), stream(32, lanes=4), BYTE),
        Mul(stream(32, number=NARROW), stream(32, number=WIDE), BYTE),
    ],
    "fixed_batch_norm": [
        BatchNorm(stream(3, 8, lanes=4), BYTE, codes(BYTE, 8), codes(BYTE, 8), BYTE, BYTE),
        BatchNorm(stream(5, 3), BYTE, codes(BYTE, 3), codes(WIDE, 3), BYTE, Fixed(12, 11)),
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
    ],
    "fixed_avg_pool": [
        AvgPool(stream(4, 4, 4, lanes=2), (2, 2), (2, 2), format=BYTE),
        AvgPool(stream(6, 6, 2), (3, 3), (3, 3), format=Fixed(6, 1)),
        AvgPool(stream(6, 6, 1), (3, 2), (1, 1), (1, 1), format=WIDE),
        AvgPool(stream(4, 4, 3, number=NARROW), (4, 4), (4, 4), format=BYTE),
    ],
}


def test_the_cases_cover_every_component():
    assert set(CASES) == set(COMPONENTS)


@pytest.mark.sim
@pytest.mark.parametrize("name", sorted(CASES))
def test_component_is_exact_in_values_and_cycles(name, tmp_path):
    for verdict in check_components(CASES[name], tmp_path):
        assert verdict.is_exact
