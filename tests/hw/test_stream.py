import numpy as np
import pytest

from chop.errors import ConfigError
from chop.hw.arith.golden import Fixed
from chop.hw.design.stream import Stream, from_bytes, pack_words, storage_bytes, to_bytes


@pytest.mark.parametrize("width", [2, 3, 8, 13, 32])
@pytest.mark.parametrize("lanes", [1, 2, 6])
def test_bytes_round_trip(width, lanes):
    stream = Stream((4, 6), lanes, Fixed(width))
    codes = np.random.default_rng(0).integers(-(2 ** (width - 1)), 2 ** (width - 1), (5, 4, 6))
    rows = to_bytes(codes, stream)
    assert rows.shape == (5 * stream.beats, storage_bytes(stream.beat_width))
    assert (from_bytes(rows, stream).reshape(codes.shape) == codes).all()


def test_words_put_element_zero_in_the_low_bits():
    stream = Stream((4,), 2, Fixed(4))
    assert stream.words(np.array([1, -1, 7, 0])) == [0xF1, 0x07]


def test_parallelism_that_does_not_divide_is_refused_with_the_divisors():
    with pytest.raises(ConfigError, match=r"got 4\. Allowed: 1, 2, 3, 6"):
        Stream((6,), 4, Fixed(8))


@pytest.mark.parametrize("width", [1, 3, 8, 12, 16, 32, 63, 70])
def test_words_are_the_codes_side_by_side(width):
    rows = np.random.default_rng(width).integers(-(2**62), 2**62, (5, 3)) >> max(0, 63 - width)
    mask = (1 << width) - 1
    wanted = [sum((int(c) & mask) << (k * width) for k, c in enumerate(row)) for row in rows]
    assert pack_words(rows, width) == wanted == pack_words(rows.astype(object), width)
