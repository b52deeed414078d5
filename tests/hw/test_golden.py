import doctest
import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from chop.errors import ConfigError
from chop.hw.arith import affine, golden
from chop.hw.arith.affine import Line, fit_lines
from chop.hw.arith.golden import Fixed
from chop.hw.design import stream
from chop.nn.quantizers import Integer

CODES = np.arange(-300, 300)


def nearest_even(value: Fraction) -> int:
    return round(value)  # Python rounds a Fraction half to even


@pytest.mark.parametrize("dropped", [-2, 0, 1, 2, 5])
def test_round_shift_is_exact_division_rounded_half_to_even(dropped):
    wanted = [nearest_even(Fraction(int(c)) / Fraction(2) ** dropped) for c in CODES]
    assert golden.round_shift(CODES, dropped).tolist() == wanted


@pytest.mark.parametrize("divisor", [1, 2, 3, 6, 9, 12, 49])
def test_round_divide_is_exact_division_rounded_half_to_even(divisor):
    wanted = [nearest_even(Fraction(int(c), divisor)) for c in CODES]
    assert golden.round_divide(CODES, divisor).tolist() == wanted


def test_encode_agrees_with_cast_of_finer_codes():
    fine, coarse = Fixed(12, 6), Fixed(6, 2)
    codes = np.arange(fine.low, fine.high + 1)
    assert (coarse.encode(fine.decode(codes)) == golden.cast(codes, 6, coarse)).all()


def test_divide_cast_is_the_quotient_encoded():
    out = Fixed(8, 3)
    wanted = [min(max(nearest_even(Fraction(int(c), 6) / 2), out.low), out.high) for c in CODES]
    assert golden.divide_cast(CODES, 4, 6, out).tolist() == wanted


def integers():
    """Formats of every kind: signed or not, narrow, wrapped, in every rounding."""
    kinds = [(True, False, "saturate"), (False, False, "saturate"), (True, True, "saturate"),
             (True, False, "wrap"), (False, False, "wrap")]  # fmt: skip
    for kind, rounding, width in itertools.product(kinds, golden.ROUNDINGS, (1, 2, 5)):
        if width > 1 or not kind[1]:
            yield from (Integer(width, f, *kind, rounding=rounding) for f in (-2, 0, 3))


def test_every_kind_of_integer_is_the_quantisers_in_encoding_and_in_casts():
    for number in integers():
        fixed = Fixed.of(number)
        for frac_width in (-3, 0, 4, 20):
            x = torch.from_numpy(np.ldexp(CODES.astype(float), -frac_width))
            wanted = number.quantize(x).numpy()
            assert np.array_equal(fixed.decode(fixed.encode(x.numpy())), wanted)
            assert np.array_equal(fixed.decode(golden.cast(CODES, frac_width, fixed)), wanted)


@pytest.mark.parametrize("rounding", golden.ROUNDINGS)
def test_fitted_lines_give_the_results_of_the_real_numbers(rounding):
    data, out = Fixed(7, 3), Fixed(6, 2, rounding=rounding)
    lines = tuple(Line(Fraction(a), Fraction(b)) for a, b in
                  ((0.31, 0.7), (-1.9, 0.125), (0.0, 0.3), (1.0, -0.125), (0.5, 0.0)))  # fmt: skip
    found = fit_lines(lines, data, out)
    x = np.arange(data.low, data.high + 1)
    frac = data.frac_width + found.frac_width
    for line, slope, offset in zip(lines, found.slopes, found.offsets, strict=True):
        given = golden.cast(x * slope + (offset << (frac - found.offset_frac)), frac, out)
        exact = [line.slope * int(c) / 8 + line.offset for c in x]
        bits = max(v.denominator.bit_length() for v in exact) - 1
        codes = np.array([int(v * 2**bits) for v in exact], dtype=object)
        assert np.array_equal(given, golden.cast(codes, bits, out))


def test_fixed_encode_saturates_at_both_ends():
    assert Fixed(4, 1).encode([-100.0, 100.0]).tolist() == [-8, 7]


@pytest.mark.parametrize(
    ("width", "frac_width", "told"),
    [(0, 0, "width must lie in 1"), (63, 0, "width must"), (8, 600, "frac_width must lie")],
)
def test_fixed_refuses_a_format_out_of_range(width, frac_width, told):
    with pytest.raises(ConfigError, match=told):
        Fixed(width, frac_width)


def test_the_examples_in_the_documentation_run():
    for module in (affine, golden, stream):
        assert doctest.testmod(module).failed == 0
