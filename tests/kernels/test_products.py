"""Products of packed weights against sums written from the formats' definitions.

Activations that are an int8 times a power of two in each chunk of 32 columns (MXINT8, say) are
multiplied as integers: where scales are powers of two and the sum stays below 2**24, nothing is
rounded, and results are compared for equality. Other activations are rounded to 20 bits of the
largest in their chunk or multiplied in float32: a relative error of a few 2**-21 of the row's norm.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from chop.kernels import (
    GROUP_SIZES,
    INTEGER_FORMATS,
    PACKED_FORMATS,
    PackedTensor,
    QLinearPacked,
    pack,
    packed_linear,
    unpack,
)
from chop.kernels.packed_formats import SCALE_NAN
from chop.kernels.reference import scale_bytes
from chop.nn.quantizers import MXInt, ScaleInteger

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SHIFTS = {"mxint8": 6, "mxint4": 2, "int8_group": 0, "int4": 0}
FORMATS = (*PACKED_FORMATS, *INTEGER_FORMATS)
SHAPES = ((1, 1), (3, 16), (5, 33), (4, 48), (6, 200), (9, 257), (2, 640), (35, 160))
CLOSE = 3e-6


def element(code: int, format: str) -> float:
    """What a code stands for, from the format's definition."""
    if format == "mxfp8":
        return float(torch.tensor(code, dtype=torch.uint8).view(torch.float8_e4m3fn).float())
    if format == "mxfp4":
        return (-1.0) ** (code >> 3) * E2M1[code & 7]
    bits = 8 if "8" in format else 4
    whole = code - 2**bits if code >= 2 ** (bits - 1) else code
    return whole / 2 ** SHIFTS[format]


def weight_of_codes(codes: Tensor, scales: Tensor, format: str, group: int) -> Tensor:
    """The float64 values of one code per entry and one scale per group."""
    count = 256 if "8" in format else 16
    values = torch.tensor([element(c, format) for c in range(count)], dtype=torch.float64)
    per_code = scales.double().repeat_interleave(group, -1)[:, : codes.shape[1]]
    return values[codes.long()] * per_code


def packed(codes: Tensor, scales: Tensor, format: str, group: int) -> PackedTensor:
    """The same as bytes."""
    is_real, columns = format in INTEGER_FORMATS, codes.shape[1]
    if "8" not in format:
        padded = torch.nn.functional.pad(codes, (0, columns % 2))
        codes = padded[:, 0::2] | (padded[:, 1::2] << 4)
    as_bytes = scale_bytes(scales) if is_real else (scales.log2() + 127).to(torch.uint8)
    return PackedTensor(codes, as_bytes, format, group, columns)


def random_codes(rows: int, columns: int, format: str) -> Tensor:
    """Any codes, the extreme ones and zero among them; no NaN."""
    count = 256 if "8" in format else 16
    codes = torch.randint(0, count, (rows, columns), dtype=torch.uint8)
    codes[0] = count // 2  # the lowest integer, or minus zero
    if format == "mxfp8":
        codes[(codes & 127) == 127] = 0
    return codes


def spread(format: str) -> tuple[int, int]:
    """Exponents of scales with which a sum stays below 2**24 units."""
    return (0, 2) if "8" in format else (-2, 3)


def weights(format: str, group: int) -> Iterator[tuple[PackedTensor, Tensor]]:
    """Weights of all shapes with power-of-two scales, and their values."""
    for rows, columns in SHAPES:
        codes = random_codes(rows, columns, format)
        scales = torch.pow(2.0, torch.randint(*spread(format), (rows, -(-columns // group))))
        yield packed(codes, scales, format, group), weight_of_codes(codes, scales, format, group)


def int8_activations(batch: int, columns: int, exponents: tuple[int, int]) -> Tensor:
    """Integers of 8 bits, times a power of two for each chunk of 32."""
    whole = torch.randint(-127, 128, (batch, columns)).float()
    powers = torch.pow(2.0, torch.randint(*exponents, (batch, -(-columns // 32))))
    return whole * powers.repeat_interleave(32, -1)[:, :columns]


EXACT = tuple(f for f in FORMATS if f != "mxfp8")  # whose products go beyond 24 bits


@pytest.mark.parametrize("group", GROUP_SIZES)
@pytest.mark.parametrize("format", EXACT)
def test_products_with_8_bit_activations_are_exact(format: str, group: int) -> None:
    torch.manual_seed(0)
    for weight, values in weights(format, group):
        for batch in (1, 2, 3, 5, 11):
            x = int8_activations(batch, weight.columns, spread(format))
            assert torch.equal(packed_linear(x, weight).double(), x.double() @ values.t())


@pytest.mark.parametrize("group", GROUP_SIZES)
@pytest.mark.parametrize("format", FORMATS)
def test_products_are_those_of_the_definition(format: str, group: int) -> None:
    torch.manual_seed(0)
    for weight, values in weights(format, group):
        for batch in (1, 2, 5):
            x = torch.randn(batch, weight.columns)
            expected = x.double() @ values.t()
            size = x.double().norm(dim=-1, keepdim=True) * values.norm(dim=-1)
            error = (packed_linear(x, weight).double() - expected).abs()
            assert (error <= CLOSE * size).all()


@pytest.mark.parametrize("format", FORMATS)
def test_the_number_of_threads_changes_no_bit(format: str) -> None:
    torch.manual_seed(0)
    before, weight = torch.get_num_threads(), pack(torch.randn(331, 500), format)
    inputs = [torch.randn(n, 500) for n in (1, 2, 6)]
    inputs += [MXInt(8, block_size=32)(x) for x in inputs]
    results = []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            results.append([packed_linear(x, weight) for x in inputs])
    finally:
        torch.set_num_threads(before)
    first, *rest = results
    assert all(torch.equal(a, b) for other in rest for a, b in zip(first, other, strict=True))


def test_a_row_of_mxint8_activations_is_the_same_alone_and_among_others() -> None:
    torch.manual_seed(0)
    x, weight = MXInt(8, block_size=32)(torch.randn(4, 320)), pack(torch.randn(9, 320), "mxint4")
    alone = torch.cat([packed_linear(row[None], weight) for row in x[:3]])
    assert torch.equal(packed_linear(x[:3], weight), alone)


@pytest.mark.parametrize("format", EXACT)
def test_scales_of_any_size_multiply_rounded_rows(format: str) -> None:
    codes = random_codes(20, 96, format)
    scales = torch.pow(2.0, torch.tensor([[-120.0, -127.0, 3.0]])).expand(20, -1).contiguous()
    weight = packed(codes, scales, format, 32)
    scales[7, 1] = float("nan")
    if format in PACKED_FORMATS:
        weight.scales[7, 1] = SCALE_NAN
    else:
        weight = packed(codes, scales, format, 32)
    x = int8_activations(3, 96, (-2, 3))
    expected = x.double() @ weight_of_codes(codes, scales, format, 32).t()
    assert torch.allclose(packed_linear(x, weight).double(), expected, rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize("format", FORMATS)
def test_a_layer_with_mxint8_inputs_rounds_them_as_the_format_does(format: str) -> None:
    torch.manual_seed(0)
    form = MXInt(8, block_size=32)
    for rows, columns in SHAPES:
        weight = pack(torch.randn(rows, columns), format)
        layer = QLinearPacked(weight, torch.randn(rows), {"data_in": form}).requires_grad_(False)
        for batch in (1, 2, 3, 6):
            x = torch.randn(batch, columns) * torch.randn(batch, 1).exp()
            x[:, : columns // 2] *= 1e-3
            x[-1, ::2] = 0.0
            assert torch.equal(layer(x), packed_linear(form(x), weight, layer.bias))


@pytest.mark.parametrize("bad", [float("nan"), 1e30, 1e-35, 0.0])
def test_extreme_inputs_are_rounded_as_the_format_does(bad: float) -> None:
    torch.manual_seed(0)
    weight, form = pack(torch.randn(5, 64), "mxint4"), MXInt(8, block_size=32)
    layer, x = QLinearPacked(weight, None, {"data_in": form}), torch.randn(2, 64)
    x[0, :32] = bad
    expected = packed_linear(form(x), weight)
    assert torch.equal(layer(x).nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("group", [16, 128, 1024])
@pytest.mark.parametrize("format", INTEGER_FORMATS)
def test_integers_pack_as_their_quantizer_rounds(format: str, group: int) -> None:
    torch.manual_seed(0)
    form = ScaleInteger(8 if "8" in format else 4, granularity="group", group_size=group)
    for rows, columns in SHAPES:
        x = torch.randn(rows, columns)
        assert torch.equal(unpack(pack(x, format, group)), form.quantize(x))


@pytest.mark.parametrize("format", INTEGER_FORMATS)
def test_real_scales_may_be_negative_and_zero_has_no_sign(format: str) -> None:
    codes = random_codes(4, 70, format)
    codes[1] = 0
    scales = torch.randn(4, 5) - 0.5
    weight = packed(codes, scales, format, 16)
    values = unpack(weight)
    expected = weight_of_codes(codes, scales, format, 16)
    assert torch.equal(values, expected.float() + 0.0) and not values[1].signbit().any()
    x = torch.randn(3, 70)
    assert torch.allclose(packed_linear(x, weight).double(), x.double() @ expected.t(), atol=1e-3)


def test_every_format_is_checked_against_a_definition() -> None:
    assert set(FORMATS) == {*SHIFTS, "mxfp8", "mxfp4"}
    pairs = itertools.chain(PACKED_FORMATS.items(), INTEGER_FORMATS.items())
    assert all(row.element.bits == (8 if "8" in name else 4) for name, row in pairs)
