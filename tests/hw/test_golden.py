import doctest
from fractions import Fraction

import numpy as np
import pytest

from chop.errors import ConfigError
from chop.hw import golden, stream
from chop.hw.golden import Fixed

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
    for module in (golden, stream):
        assert doctest.testmod(module).failed == 0
