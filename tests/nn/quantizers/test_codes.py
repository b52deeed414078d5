"""Codes of a format give its values back, bit for bit, in the bits that it claims."""

import math

import limited
import pytest
import torch
from format_cases import CASES, awkward_points, finite_points, label

from chop.nn.quantizers import Bypass, ScaleInteger
from chop.nn.quantizers.bits import bytes_of, pack_bits, unpack_bits
from chop.nn.quantizers.blocks import BlockQuantizer
from chop.nn.quantizers.codes import Coded, Powers, decode, encode, same_bits, scales_of, tiles_of

pytestmark = pytest.mark.share(2)

SMALL = [c for c in CASES if c.bits <= 8 or (isinstance(c, BlockQuantizer) and c.element_bits <= 8)]


def coded(form, x):
    scale = scales_of(form, x) if isinstance(form, ScaleInteger) else tiles_of(form, x)
    return encode(form.quantize(x), form, scale)


@pytest.mark.parametrize("form", SMALL, ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_codes_give_the_values_back(form, dtype):
    x = (torch.randn(12, 75, generator=torch.Generator().manual_seed(3)) * 2).to(dtype)
    found = coded(form, x)
    assert found is not None
    assert same_bits(decode(found), form.quantize(x))
    assert len(found.codes) == bytes_of(x.numel(), math.ceil(found.bits))


@pytest.mark.parametrize("form", SMALL, ids=label)
def test_codes_give_back_what_a_format_makes_of_the_hardest_values(form):
    points = finite_points(randoms=200)
    x = points[: len(points) // 8 * 8].reshape(8, -1)
    found = coded(form, x)
    assert found is None or same_bits(decode(found), form.quantize(x))
    if not isinstance(form, ScaleInteger):  # sums of the largest floats overflow
        assert found is not None or not form.quantize(x).isfinite().all()


def test_a_scale_of_zero_stands_for_zeros():
    form = ScaleInteger(4, granularity="channel", scale="stored")
    x = torch.tensor([[0.0, 0.0], [0.5, -1.0]])
    found = encode(x, form, scales_of(form, x, torch.tensor([0.0, 0.5])))
    assert found is not None and same_bits(decode(found), x)


def test_values_that_are_not_of_the_format_have_no_codes():
    x = torch.randn(300, 20, generator=torch.Generator().manual_seed(0))
    assert all(encode(x, form) is None for form in SMALL)
    assert encode(x, Bypass()) is None
    assert encode(awkward_points(randoms=10).reshape(1, -1), SMALL[0]) is None


@pytest.mark.parametrize("bits", range(1, 9))
def test_numbers_of_any_width_come_back(bits):
    numbers = torch.arange(101).remainder(2**bits).to(torch.uint8)
    packed = pack_bits(numbers, bits)
    assert len(packed) == bytes_of(101, bits)
    assert torch.equal(unpack_bits(packed, bits, 101), numbers)
    stream = "".join(f"{int(n):0{bits}b}"[::-1] for n in numbers)
    told = [int(stream[i : i + 8][::-1], 2) for i in range(0, len(stream), 8)]
    assert packed.tolist() == told


@pytest.mark.parametrize("bits", [1, 3])
@pytest.mark.parametrize("tile", [None, (2**40, 2**40)])
def test_decoding_takes_little_more_memory_than_the_values(bits, tile):
    rows, columns = 4096, 8192  # 128 MiB of values
    codes = torch.zeros(rows * columns * bits // 8, dtype=torch.uint8)
    powers = None if tile is None else Powers(codes[:1], 8, 0, tile, -1)
    coded = Coded(codes, bits, (rows, columns), torch.float32, torch.ones(2**bits), powers)
    limits = limited.Limits(memory=(1 << 29) if tile is None else (1 << 30))
    found = limited.run_all([coded], lambda c: (str(decode(c).shape), ""), limits=limits)
    assert list(found) == [(0, (str(torch.Size((rows, columns))), ""))]


def test_bits_of_scalars_are_compared():
    assert same_bits(torch.tensor(0.5), torch.tensor(0.5))
    assert not same_bits(torch.tensor(0.0), torch.tensor(-0.0))
