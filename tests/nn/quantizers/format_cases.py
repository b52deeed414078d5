"""Settings of every format that the tests run over, and the inputs that formats get wrong."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from chop.nn.quantizers import (
    FP8,
    MXFP,
    NVFP4,
    Binary,
    BinaryResidual,
    BinaryScaling,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Bypass,
    FP8Block,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    Quantizer,
    RoundingQuantizer,
    ScaleInteger,
    Ternary,
)

ELEMENT_CASES: tuple[Quantizer, ...] = (
    Integer(8, 4),
    Integer(8, 4, is_signed=False),
    Integer(6, 8, narrow=True),
    Integer(4, -3),
    Integer(1, 0),
    Integer(5, 2, overflow="wrap"),
    Integer(24, 12),
    Integer(32, 16),
    ScaleInteger(8, scale=0.1),
    ScaleInteger(4, scale=0.3, zero_point=-2, narrow=False),
    Binary(),
    Binary(bipolar=False, threshold=0.25),
    Ternary(threshold=0.25),
    Log(8),
    Log(4, exponent_bias=5),
    Log(5, zero_code=True),
    Log(5, domain="linear"),
    MinifloatIEEE(8, 4),
    MinifloatIEEE(8, 5, exponent_bias=11),
    MinifloatIEEE(6, 3, special="none"),
    MinifloatIEEE(8, 4, special="fnuz"),
    MinifloatIEEE(8, 4, overflow="special"),
    MinifloatIEEE(5, 4, special="none"),
    MinifloatIEEE(3, 1),
    MinifloatIEEE(16, 5),
    MinifloatIEEE(16, 8),
    MinifloatIEEE(32, 8),
    MinifloatDenorm(8, 4),
    MinifloatDenorm(8, 4, exponent_bias=15),
    MinifloatDenorm(5, 2),
    FP8("e4m3"),
    FP8("e5m2"),
    FP8("e4m3", overflow="special"),
    FP8("e5m2", overflow="special"),
    Bypass(),
)
"""Each element is mapped alone."""

BLOCK_CASES: tuple[Quantizer, ...] = (
    BlockFP(8, block_size=16),
    BlockFP(4, exponent_width=5, block_size=32),
    BlockFP(8, exponent_width=4, exponent_bias=3, block_size=7),
    BlockFP(32, block_size=16),
    BlockFP(8, block_size=(4, 4)),
    BlockFP(6, block_size=-1),
    BlockFP(8, block_size=4, axis=0),
    BlockMinifloat(8, 4, block_size=16),
    BlockMinifloat(6, 2, 4, block_size=32),
    BlockMinifloat(4, 2, 8, block_size=(2, 3)),
    BlockLog(8, block_size=16),
    BlockLog(4, 5, block_size=32),
    BlockLog(5, block_size=5, zero_code=True),
    MXInt(8),
    MXInt(6, block_size=16),
    MXInt(4, block_size=5),
    MXFP("e4m3"),
    MXFP("e5m2", block_size=16),
    MXFP("e3m2", scale_rule="ceil"),
    MXFP("e2m3", scale_rule="rceil"),
    MXFP("e2m1", scale_rule="even", block_size=9),
    MXFP("e2m1"),
)
"""Elements of a block share an exponent."""

MEASURED_CASES: tuple[Quantizer, ...] = (
    ScaleInteger(8),
    ScaleInteger(4, granularity="channel"),
    ScaleInteger(8, granularity="group", group_size=3),
    BinaryScaling(),
    BinaryScaling(axis=0),
    BinaryResidual(2),
    BinaryResidual(3, axis=-1),
    Ternary(),
    Ternary(scaling_factor=True),
    NVFP4(),
    NVFP4(block_size=5),
    NVFP4(tensor_scale=0.01),
    FP8Block(),
    FP8Block("e5m2", block_size=(4, 8)),
    FP8Block(block_size=6, axis=0),
)
"""A real number is measured on the tensor."""

CASES = ELEMENT_CASES + BLOCK_CASES + MEASURED_CASES
DETERMINISTIC = ("nearest_even", "nearest_away", "floor", "toward_zero")


def with_rounding(quantizer: Quantizer, rounding: str) -> Quantizer:
    """The same format with another rounding, where it has a choice."""
    if not isinstance(quantizer, RoundingQuantizer):
        return quantizer
    return dataclasses.replace(quantizer, rounding=rounding, seed=7)


def label(quantizer: Quantizer) -> str:
    """The name of a case: the settings that differ from the defaults."""
    changed = [
        f"{f.name}={getattr(quantizer, f.name)}"
        for f in dataclasses.fields(quantizer)
        if getattr(quantizer, f.name) != f.default
    ]
    return " ".join([quantizer.name, *changed])


def same(a: Tensor, b: Tensor) -> bool:
    """Bit-equal, except that any NaN equals any other."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    equal = (a == b) & (a.signbit() == b.signbit())
    return bool((equal | (a.isnan() & b.isnan())).all())


def neighbours(points: Tensor) -> Tensor:
    """float32 points with the floats just below and above each."""
    points = points.float()
    up = torch.nextafter(points, torch.tensor(math.inf))
    down = torch.nextafter(points, torch.tensor(-math.inf))
    return torch.cat([points, up, down])


def awkward_points(seed: int = 0, randoms: int = 2000) -> Tensor:
    """Zeros, subnormals, all powers of two and their neighbours, Inf, NaN, random bit patterns."""
    generator = torch.Generator().manual_seed(seed)
    powers = 2.0 ** torch.arange(-149, 128, dtype=torch.float64)
    plain = neighbours(torch.cat([powers, -powers[::8], 1.5 * powers[::8], -1.5 * powers[::9]]))
    bits = torch.randint(-(2**31), 2**31, (randoms,), generator=generator, dtype=torch.int64)
    patterns = bits.to(torch.int32).view(torch.float32)
    normal = torch.randn(randoms, generator=generator)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])
    return torch.cat([special, plain, patterns, normal])


def finite_points(seed: int = 0, randoms: int = 2000) -> Tensor:
    """`awkward_points` without Inf and NaN."""
    points = awkward_points(seed, randoms)
    return points[points.isfinite()]


def points_of(values: Tensor) -> Tensor:
    """Every value of a set, every midpoint, and the floats next to both."""
    middles = (values[1:] + values[:-1]) / 2
    return neighbours(torch.cat([values, middles]))


def awkward_blocks(columns: int, seed: int = 0, rows: int = 64) -> Tensor:
    """Rows of wildly different magnitudes: zero, subnormal, huge, powers of two, Inf, NaN."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    scale = torch.randint(-140, 127, (rows, 1), generator=generator)
    x = torch.ldexp(x.double(), scale).clamp(-3.4e38, 3.4e38).float()
    x[0] = 0.0
    x[1] = -0.0
    x[2] = torch.finfo(torch.float32).max
    x[3] = 2.0**-149
    x[4] = torch.nextafter(torch.tensor(2.0), torch.tensor(0.0))
    x[5] = torch.randn(columns, generator=generator)
    x[5, 0] = math.inf
    x[6, -1] = math.nan
    x[7] = 1.0
    x[8, ::2] *= 1e-30
    x[9] = 2.0**-126 * torch.randn(columns, generator=generator)
    x[10:20] = torch.randn(10, columns, generator=generator)
    x[20:24] = torch.randn(4, columns, generator=generator).round(decimals=1)
    return x
