"""MXINT by its definition, in fractions, one number at a time: shares no code with the package."""

from fractions import Fraction


def floor_log2(x):
    """The largest whole e with 2**e <= x, for x above 0."""
    e = 0
    while Fraction(2) ** e > x:
        e -= 1
    while Fraction(2) ** (e + 1) <= x:
        e += 1
    return e


def whole(x, rounding):
    """The integer that a fraction is rounded to."""
    below = x.numerator // x.denominator
    rest = x - below
    if rounding == "floor":
        return below
    if rounding == "toward_zero":
        return below + (1 if x < 0 and rest else 0)
    if rest == Fraction(1, 2):
        up = below % 2 == 1 if rounding == "nearest_even" else x > 0
        return below + up
    return below + (rest > Fraction(1, 2))


def block_of(numbers, width, exponent_width, rounding):
    """The numbers of one block in MXINT."""
    most = 2 ** (exponent_width - 1) - 1
    largest = max(abs(x) for x in numbers)
    e = -most if largest == 0 else min(max(floor_log2(largest), -most), most)
    unit, limit = Fraction(2) ** (e - (width - 2)), 2 ** (width - 1) - 1
    return [min(max(whole(x / unit, rounding), -limit), limit) * unit for x in numbers]


def row_of(numbers, number):
    """A row of numbers in the format `number`: its blocks in turn, the last may be shorter."""
    size = len(numbers) if number.block_size == -1 else number.block_size
    found = []
    for start in range(0, len(numbers), size):
        block = numbers[start : start + size]
        found += block_of(block, number.width, number.exponent_width, number.rounding)
    return found


def fixed(x, width, frac_width, rounding="nearest_even"):
    """The code of a number in signed fixed point that saturates."""
    code = whole(x * Fraction(2) ** frac_width, rounding)
    return min(max(code, -(2 ** (width - 1))), 2 ** (width - 1) - 1)


def dot(xs, ws, start=Fraction(0)):
    """The exact sum of products."""
    return sum((x * w for x, w in zip(xs, ws, strict=True)), start)
