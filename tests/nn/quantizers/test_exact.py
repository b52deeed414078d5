"""Every format of at most 8 bits, on every value, midpoint and neighbour, against oracles."""

import contextlib
import itertools
import math
from dataclasses import replace
from fractions import Fraction

import apytypes
import format_oracle as oracle
import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
import torch
from format_cases import (
    DETERMINISTIC,
    awkward_points,
    finite_points,
    label,
    neighbours,
    points_of,
    same,
)

from chop.errors import ConfigError
from chop.nn.quantizers import (
    FP8,
    MXFP,
    Binary,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    Ternary,
)

pytestmark = pytest.mark.share(2)

GFLOAT_ROUNDING = {
    "nearest_even": gfloat.RoundMode.TiesToEven,
    "nearest_away": gfloat.RoundMode.TiesToAway,
    "toward_zero": gfloat.RoundMode.TowardZero,
    "floor": gfloat.RoundMode.TowardNegative,
}


def as_float32(values):
    return torch.tensor([float(v) for v in values], dtype=torch.float64).float()


def points_for(quantizer, seed=0):
    """Everything awkward for this format, finite or not."""
    return torch.cat([points_of(quantizer.value_set()), awkward_points(seed, randoms=300)])


# --- fixed point ------------------------------------------------------------------------------

FIXED = [
    Integer(8, 4),
    Integer(8, 0),
    Integer(7, 9),
    Integer(5, -2),
    Integer(1, 0),
    Integer(8, 4, is_signed=False),
    Integer(6, 3, narrow=True),
]


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("case", FIXED, ids=label)
def test_fixed_point_is_the_rational_definition(case, rounding):
    quantizer = replace(case, rounding=rounding)
    unit = 2.0**-case.frac_width
    low, high = (int(bound / unit) for bound in case.range)
    x = points_for(case)
    x = x[~x.isnan()]
    expected = [oracle.fixed(v, case.frac_width, low, high, rounding) for v in x.tolist()]
    assert torch.equal(quantizer.quantize(x), as_float32(expected))


@pytest.mark.parametrize("overflow", ["saturate", "wrap"])
@pytest.mark.parametrize("rounding", DETERMINISTIC)
def test_fixed_point_agrees_with_apytypes(rounding, overflow):
    modes = {
        "nearest_even": apytypes.QuantizationMode.RND_CONV,
        "nearest_away": apytypes.QuantizationMode.RND_INF,
        "floor": apytypes.QuantizationMode.TRN,
        "toward_zero": apytypes.QuantizationMode.TRN_ZERO,
    }
    overflows = {"saturate": apytypes.OverflowMode.SAT, "wrap": apytypes.OverflowMode.WRAP}
    x = points_of(Integer(8, 4).value_set())
    x = torch.cat([x, torch.linspace(-40, 40, 4001)]).round(decimals=4)
    x = torch.round(x * 2**20) / 2**20
    source = apytypes.APyFixedArray.from_float(x.tolist(), int_bits=12, frac_bits=24)
    cast = source.cast(4, 4, quantization=modes[rounding], overflow=overflows[overflow])
    expected = torch.tensor(cast.to_numpy()).float()
    assert torch.equal(Integer(8, 4, rounding=rounding, overflow=overflow).quantize(x), expected)


# --- floats -----------------------------------------------------------------------------------

ML_DTYPES = {
    "float8_e4m3fn": FP8("e4m3", overflow="special"),
    "float8_e5m2": FP8("e5m2", overflow="special"),
    "float8_e4m3": MinifloatIEEE(8, 4, overflow="special"),
    "float8_e3m4": MinifloatIEEE(8, 3, overflow="special"),
    "float8_e4m3fnuz": MinifloatIEEE(8, 4, special="fnuz", overflow="special"),
    "float8_e5m2fnuz": MinifloatIEEE(8, 5, special="fnuz", overflow="special"),
    "float8_e4m3b11fnuz": MinifloatIEEE(8, 4, exponent_bias=11, special="fnuz", overflow="special"),
    "float6_e3m2fn": MinifloatIEEE(6, 3, special="none"),
    "float6_e2m3fn": MinifloatIEEE(6, 2, special="none"),
    "float4_e2m1fn": MinifloatIEEE(4, 2, special="none"),
}


@pytest.mark.parametrize("name", ML_DTYPES)
def test_floats_agree_with_ml_dtypes(name):
    quantizer = ML_DTYPES[name]
    x = points_for(quantizer)
    if quantizer.overflows_to_special is False:
        x = x[x.abs() <= quantizer.range[1]]
    with np.errstate(all="ignore"):
        cast = x.numpy().astype(getattr(ml_dtypes, name)).astype(np.float32)
    assert same(quantizer.quantize(x), torch.from_numpy(cast))


@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_fp8_agrees_with_torch_in_range(element):
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[element]
    quantizer = FP8(element)
    x = points_for(quantizer)
    x = x[(x.abs() <= quantizer.range[1]) | x.isnan()]
    assert same(quantizer.quantize(x), x.to(dtype).float())


FLOATS = [
    FP8("e4m3"),
    FP8("e5m2"),
    *(MinifloatIEEE(w, e) for w, e in [(8, 4), (8, 2), (7, 5), (4, 2), (3, 1), (5, 4), (8, 7)]),
    *(MinifloatIEEE(w, e, special="fn") for w, e in [(8, 4), (6, 3), (3, 1), (5, 4)]),
    *(MinifloatIEEE(w, e, special="none") for w, e in [(6, 3), (4, 2), (4, 3), (2, 1)]),
    MinifloatIEEE(8, 4, exponent_bias=-3),
    MinifloatIEEE(6, 4, exponent_bias=30),
]


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("case", FLOATS, ids=label)
def test_floats_are_the_rational_definition(case, rounding):
    grid = case.grid
    magnitudes = oracle.float_values(
        grid.exponent_width, grid.mantissa_width, grid.bias, grid.special
    )
    x = points_for(case)
    x = x[~x.isnan()]
    expected = [oracle.round_to(v, magnitudes, rounding) for v in x.tolist()]
    quantizer = replace(case, rounding=rounding)
    assert torch.equal(quantizer.quantize(x), as_float32(expected))


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("width, exponent_width", [(8, 4), (6, 3), (5, 4), (4, 2)])
def test_floats_agree_with_gfloat(width, exponent_width, rounding):
    quantizer = MinifloatIEEE(width, exponent_width, special="none", rounding=rounding)
    info = gfloat.FormatInfo(
        name="minifloat",
        k=width,
        precision=width - exponent_width,
        bias=quantizer.grid.bias,
        has_nz=True,
        domain=gfloat.Domain.Finite,
        num_high_nans=0,
        has_subnormals=True,
        is_signed=True,
        is_twos_complement=False,
    )
    x = points_of(quantizer.value_set()).double()
    rounded = gfloat.round_ndarray(info, x.numpy(), GFLOAT_ROUNDING[rounding], True)
    assert same(quantizer.quantize(x), torch.from_numpy(rounded))


def gfloat_info(quantizer):
    """The same format in gfloat's terms."""
    grid = quantizer.grid
    is_ieee = grid.special == "ieee"
    return gfloat.FormatInfo(
        name="minifloat",
        k=quantizer.width,
        precision=grid.mantissa_width + 1,
        bias=grid.bias,
        has_nz=grid.special != "fnuz",
        domain=gfloat.Domain.Extended if is_ieee else gfloat.Domain.Finite,
        num_high_nans={"ieee": 2**grid.mantissa_width - 1, "fn": 1}.get(grid.special, 0),
        has_subnormals=True,
        is_signed=True,
        is_twos_complement=False,
    )


def zero_mantissa_floats():
    """Every float of one sign bit and exponent bits alone, in every variant."""
    for exponent_width, special in itertools.product(range(1, 9), ("ieee", "fn", "fnuz", "none")):
        for overflow in ("saturate", "special"):
            settings = {"special": special, "overflow": overflow}
            with contextlib.suppress(ConfigError):  # no value left, or beyond float32
                yield MinifloatIEEE(exponent_width + 1, exponent_width, **settings)


def ties_and_beyond(grid):
    """Values, midpoints, the floats beside them, and magnitudes around and beyond the largest."""
    factors = torch.tensor([1.125, 1.4999, 1.5, 1.5001, 2.0, 3.0], dtype=torch.float64)
    beyond = factors * grid.limit()
    beyond = beyond[beyond < torch.finfo(torch.float32).max]
    return torch.cat([points_of(grid.values()).double(), beyond, -beyond])


@pytest.mark.parametrize("quantizer", list(zero_mantissa_floats()), ids=label)
def test_floats_without_mantissa_bits_break_ties_by_the_code(quantizer):
    x = ties_and_beyond(quantizer.grid)
    saturates = quantizer.overflow == "saturate"
    even = gfloat.RoundMode.TiesToEven
    expected = torch.from_numpy(
        gfloat.round_ndarray(gfloat_info(quantizer), x.numpy(), even, saturates)
    )
    assert same(quantizer.quantize(x), expected)
    held = x.float().double() == x
    assert same(quantizer.quantize(x.float())[held], expected.float()[held])
    assert quantizer.kernel() is None  # native code ties to even multiples, not to even codes
    assert same(quantizer(x.float()), quantizer.quantize(x.float()))


def test_the_variants_of_one_width_break_the_same_tie_each_by_its_own_code():
    ties = torch.tensor([1.5, 3.0, 6.0])
    by_special = {
        special: MinifloatIEEE(5, 4, special=special).quantize(ties).tolist()
        for special in ("ieee", "fn", "fnuz", "none")
    }
    # the exponent field of 1.0 is the bias: 7, for fnuz 8
    odd_bias, even_bias = [2.0, 2.0, 8.0], [1.0, 4.0, 4.0]
    assert by_special == {
        "ieee": odd_bias,
        "fn": odd_bias,
        "fnuz": even_bias,
        "none": odd_bias,
    }


@pytest.mark.parametrize("special", ["ieee", "fn"])
def test_a_format_without_values_is_refused_in_its_own_name(special):
    with pytest.raises(ConfigError, match=f"special = '{special}' leaves no value but zero"):
        MinifloatIEEE(2, 1, special=special)


DENORMS = [MinifloatDenorm(8, 4), MinifloatDenorm(8, 4, 15), MinifloatDenorm(6, 2)]


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("case", DENORMS, ids=label)
def test_denorm_floats_are_the_rational_definition(case, rounding):
    magnitudes = oracle.denorm_values(case.exponent_width, case.mantissa_width, case.bias)
    x = points_for(case)
    x = x[~x.isnan()]
    expected = [oracle.round_to(v, magnitudes, rounding) for v in x.tolist()]
    quantizer = replace(case, rounding=rounding)
    assert torch.equal(quantizer.quantize(x), as_float32(expected))


# --- powers of two ------------------------------------------------------------------------------

LOGS = [Log(8), Log(4), Log(5, exponent_bias=20), Log(6, domain="linear")]


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("case", LOGS, ids=label)
def test_log_is_the_rational_definition(case, rounding):
    low, high = case.exponents
    magnitudes = [2.0**k for k in range(low, high + 1)]
    x = torch.cat([points_for(case), neighbours(math.sqrt(2) * case.value_set())])
    x = x[~x.isnan()]
    is_log = case.domain == "log"
    expected = [oracle.round_to(v, magnitudes, rounding, is_log) for v in x.tolist()]
    quantizer = replace(case, rounding=rounding)
    assert same(quantizer.quantize(x), as_float32(expected))


def test_a_zero_code_takes_the_lowest_exponent():
    plain, with_zero = Log(5), Log(5, zero_code=True)
    x = points_for(plain)
    y = plain.quantize(x)
    expected = torch.where(y.abs() == 2.0 ** plain.exponents[0], 0.0, y)
    assert same(with_zero.quantize(x), expected)


# --- few values ---------------------------------------------------------------------------------


def test_binary_is_the_sign_with_zero_positive():
    x = awkward_points(randoms=500)
    expected = [v if math.isnan(v) else (1.0 if v >= 0 else -1.0) for v in x.tolist()]
    assert same(Binary().quantize(x), torch.tensor(expected))


def test_ternary_is_strict_at_its_threshold():
    x = neighbours(torch.tensor([0.25, -0.25, 0.0, 1.0]))
    expected = [float((v > 0.25) - (v < -0.25)) for v in x.tolist()]
    assert torch.equal(Ternary(threshold=0.25).quantize(x), torch.tensor(expected))


# --- blocks -------------------------------------------------------------------------------------


def blocks(size, seed=0):
    """Blocks of every kind: each row is one, most hold midpoints and neighbours of their scale."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(-64, 65, (40, size), generator=generator) / 32.0
    scale = torch.randint(-149, 126, (40, 1), generator=generator)
    scale[:20] = torch.randint(-20, 20, (20, 1), generator=generator)
    scaled = torch.ldexp(steps.double(), scale).float()
    rows = [scaled, torch.nextafter(scaled, torch.tensor(math.inf)), finite_points(seed, 200)[::2]]
    flat = torch.cat([r.flatten() for r in rows])
    x = flat[: flat.numel() // size * size].reshape(-1, size)
    return torch.cat([x, torch.zeros(1, size), -torch.zeros(1, size)])


def by_block(x, definition):
    """`definition(block)` for each row."""
    return torch.stack([as_float32(definition(row)) for row in x.tolist()])


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("width", [8, 6, 4, 2])
def test_mxint_is_the_rational_definition(width, rounding):
    def definition(block):
        scale = oracle.block_unit(block, -127, 127, zero=-127)
        high = 2 ** (width - 1) - 1
        return [oracle.fixed(v, width - 2 - scale, -high, high, rounding) for v in block]

    x = blocks(8)
    y = MXInt(width, block_size=8, rounding=rounding).quantize(x)
    assert torch.equal(y, by_block(x, definition))
    assert not y[y == 0].signbit().any()


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("case", [BlockFP(8), BlockFP(4, 5), BlockFP(6, 4, 3)], ids=label)
def test_block_fp_is_the_rational_definition(case, rounding):
    low, high = case.exponents

    def definition(block):
        exponent = oracle.block_unit(block, low - 1, high - 1, zero=low - 1) + 1
        unit = 2.0 ** (exponent - case.width + 1)
        magnitudes = [i * unit for i in range(2 ** (case.width - 1))]
        return [oracle.round_to(v, magnitudes, rounding) for v in block]

    x = blocks(8)
    quantizer = replace(case, rounding=rounding, block_size=8)
    assert torch.equal(quantizer.quantize(x), by_block(x, definition))


def test_block_fp_of_8_bits_is_mxint8():
    x = blocks(32)
    x = x[(x.abs().amax(1) >= 2.0**-126)]
    assert torch.equal(BlockFP(8).quantize(x), MXInt(8).quantize(x))


def scale_by_rule(largest, rule, limit, mantissa_width):
    """Exponent of the scale times the element's largest exponent, from the rule's own words."""
    exponent = oracle.floor_log2(largest)
    if rule == "floor":
        return exponent
    if rule == "ceil":
        return exponent + (largest > oracle.power(exponent))
    if rule == "rceil":
        needed = largest / limit
        below = oracle.floor_log2(needed)
        return oracle.floor_log2(limit) + below + (needed > oracle.power(below))
    unit = oracle.power(exponent - mantissa_width)
    return oracle.floor_log2(round(largest / unit) * unit)


@pytest.mark.parametrize("rule", ["floor", "ceil", "rceil", "even"])
@pytest.mark.parametrize("element", ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"])
def test_mxfp_is_the_rational_definition(element, rule):
    quantizer = MXFP(element, scale_rule=rule, block_size=8)
    grid = quantizer.grid
    values = oracle.float_values(grid.exponent_width, grid.mantissa_width, grid.bias, grid.special)
    limit = Fraction(values[-1])
    top = oracle.floor_log2(limit)

    def definition(block):
        largest = max(abs(Fraction(v)) for v in block)
        raised = scale_by_rule(largest, rule, limit, grid.mantissa_width) if largest else -1000
        scale = 2.0 ** min(max(raised - top, -127), 127 - top)
        magnitudes = [scale * v for v in values]
        return [oracle.round_to(v, magnitudes, "nearest_even") for v in block]

    x = blocks(8)
    assert torch.equal(quantizer.quantize(x), by_block(x, definition))


@pytest.mark.parametrize("rounding", DETERMINISTIC)
def test_mxfp_rounds_as_asked(rounding):
    quantizer = MXFP("e2m3", block_size=8, rounding=rounding)
    values = oracle.float_values(2, 3, 1, "none")

    def definition(block):
        scale = 2.0 ** (oracle.block_unit(block, -125, 127, zero=-125) - 2)
        magnitudes = [scale * m for m in values]
        return [oracle.round_to(v, magnitudes, rounding) for v in block]

    x = blocks(8)
    assert torch.equal(quantizer.quantize(x), by_block(x, definition))


@pytest.mark.parametrize(
    "element, info",
    [
        ("e4m3", gfloat.formats.format_info_mxfp8_e4m3),
        ("e5m2", gfloat.formats.format_info_mxfp8_e5m2),
        ("e3m2", gfloat.formats.format_info_mxfp6_e3m2),
        ("e2m3", gfloat.formats.format_info_mxfp6_e2m3),
        ("e2m1", gfloat.formats.format_info_mxfp4_e2m1),
    ],
)
def test_mxfp_agrees_with_gfloat(element, info):
    x = blocks(32)[::3].double()
    expected = [gfloat.quantize_block(info, row.numpy(), gfloat.compute_scale_amax) for row in x]
    y = MXFP(element).quantize(x)
    assert torch.equal(y, torch.from_numpy(np.stack(expected)))


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("case", [BlockMinifloat(8, 4), BlockMinifloat(6, 2, 4)], ids=label)
def test_block_minifloat_is_the_rational_definition(case, rounding):
    top = 2**case.exponent_width - 1
    largest_bias = 2**case.exponent_bias_width - 1

    def definition(block):
        bias = top - oracle.block_unit(block, top - largest_bias, top, zero=top - largest_bias)
        magnitudes = oracle.float_values(case.exponent_width, case.mantissa_width, bias, "none")
        return [oracle.round_to(v, magnitudes, rounding) for v in block]

    x = blocks(8)[::4]
    quantizer = replace(case, rounding=rounding, block_size=8)
    assert torch.equal(quantizer.quantize(x), by_block(x, definition))


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("case", [BlockLog(8), BlockLog(4, 5)], ids=label)
def test_block_log_is_the_rational_definition(case, rounding):
    top = 2 ** (case.width - 1) - 1
    largest_bias = min(2**case.exponent_bias_width - 1, 126)

    def definition(block):
        largest = max(abs(v) for v in block)
        powers = [2.0**k for k in range(-150, 129)]
        nearest = oracle.round_to(largest, powers, "nearest_even", is_log=True) if largest else 0
        exponent = oracle.floor_log2(Fraction(nearest)) if largest else -1000
        bias = min(max(top - exponent, 0), largest_bias)
        magnitudes = [2.0 ** (k - bias) for k in range(top + 1)]
        return [oracle.round_to(v, magnitudes, rounding, is_log=True) for v in block]

    x = blocks(8)[::2]
    quantizer = replace(case, rounding=rounding, block_size=8)
    assert same(quantizer.quantize(x), by_block(x, definition))
