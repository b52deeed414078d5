"""Packing equals the number formats' definitions, bit for bit, on every back end there is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.kernels import (
    GROUP_SIZES,
    PACKED_FORMATS,
    PackedTensor,
    cpu,
    dequantize_mxint8,
    pack,
    reference,
    unpack,
)

COLUMNS = (1, 15, 16, 33, 128, 200, 257)
BACK_ENDS = {"reference": reference.unpack, "cpu": cpu.unpack}
FORMAT_NAMES = tuple(PACKED_FORMATS)


def is_same(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, but for the payload of a NaN."""
    known = ~a.isnan()
    same_sign = torch.equal(a.signbit() & known, b.signbit() & known)
    return torch.equal(known, ~b.isnan()) and torch.equal(a[known], b[known]) and same_sign


def all_pairs(format: str, group_size: int) -> tuple[Tensor, Tensor, int]:
    """Every byte of codes under every scale byte."""
    columns = 256 * PACKED_FORMATS[format].per_byte
    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, columns // group_size)
    return codes, scales, columns


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_unpacked_values_are_those_of_the_quantizer(format: str, group_size: int) -> None:
    torch.manual_seed(0)
    for columns in COLUMNS:
        x = torch.randn(5, columns) * torch.randn(5, 1).exp()
        expected = PACKED_FORMATS[format].quantizer(group_size).quantize(x)
        assert is_same(unpack(pack(x, format, group_size)), expected)


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_extreme_values_pack_as_the_quantizer_rounds_them(format: str) -> None:
    huge, tiny = torch.finfo(torch.float32).max, 2.0**-149
    row = torch.tensor([0.0, -0.0, tiny, -tiny, 2.0**-126, 1.0, -1.0, huge])
    x = torch.cat([row, row * 2.0**-20, row * 0]).repeat_interleave(16)
    expected = PACKED_FORMATS[format].quantizer(16).quantize(x)
    assert is_same(unpack(pack(x, format, 16)), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_a_group_with_no_number_becomes_nan_and_its_neighbour_does_not(
    format: str, bad: float
) -> None:
    x = torch.ones(32)
    x[3] = bad
    values = unpack(pack(x, format, 16))
    assert values[:16].isnan().all() and torch.equal(values[16:], torch.ones(16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_pack_as_they_are_quantised(dtype: torch.dtype) -> None:
    x = torch.randn(3, 40, dtype=torch.float64).to(dtype)
    wide = x if dtype == torch.float64 else x.float()
    expected = PACKED_FORMATS["mxint8"].quantizer(32).quantize(wide)
    assert torch.equal(unpack(pack(x), torch.float64), expected.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_the_back_ends_agree_on_every_byte_under_every_scale(
    format: str, dtype: torch.dtype
) -> None:
    codes, scales, columns = all_pairs(format, 64)
    first, *rest = [run(codes, scales, format, 64, columns, dtype) for run in BACK_ENDS.values()]
    assert all(is_same(first, other) for other in rest)


@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_mxint8_is_code_times_scale_for_every_byte_and_exponent(group_size: int) -> None:
    codes, scales, columns = all_pairs("mxint8", group_size)
    exponent = torch.arange(256, dtype=torch.float64)[:, None] - 127
    exact = codes.view(torch.int8).double() / 64 * 2.0**exponent
    exact[255] = math.nan
    for dtype in (torch.float32, torch.bfloat16):
        for run in BACK_ENDS.values():
            assert is_same(
                run(codes, scales, "mxint8", group_size, columns, dtype), exact.to(dtype)
            )
    assert is_same(dequantize_mxint8(codes, scales, group_size), exact.to(torch.bfloat16))


def test_rows_of_mxfp8_numbers_unpack_alike_under_every_scale() -> None:
    codes, scales, columns = all_pairs("mxfp8", 64)
    codes[(codes & 127) == 127] = 0  # NaN is unpacked in another way
    first, *rest = [
        run(codes, scales, "mxfp8", 64, columns, torch.float32) for run in BACK_ENDS.values()
    ]
    assert all(is_same(first, other) for other in rest)


def test_mxfp8_elements_are_those_of_float8_e4m3() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(torch.float8_e4m3fn).float()
    assert is_same(PACKED_FORMATS["mxfp8"].element.decode(codes), expected)


def test_encoding_inverts_decoding_for_every_code() -> None:
    for row in PACKED_FORMATS.values():
        codes = torch.arange(2**row.element.bits, dtype=torch.uint8)
        values = row.element.decode(codes)
        known = ~values.isnan()
        assert torch.equal(row.element.encode(values)[known], codes[known])


def test_two_codes_share_a_byte_and_the_first_is_in_the_low_half() -> None:
    assert pack(torch.tensor([1.0, -1.0, 0.25]), "mxint4", 16).codes.tolist() == [0xC4, 0x01]


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (2, 3, 5)])
@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_any_shape_packs_and_comes_back(shape: tuple[int, ...], format: str) -> None:
    x = torch.randn(shape)
    packed = pack(x, format, 16)
    assert packed.shape == shape and unpack(packed).shape == shape


def test_a_tensor_that_is_not_contiguous_packs_as_its_copy() -> None:
    x = torch.randn(40, 6).t()
    assert torch.equal(pack(x).codes, pack(x.contiguous()).codes)


def test_codes_that_are_not_contiguous_unpack_as_their_copy() -> None:
    packed = pack(torch.randn(8, 64))
    half = PackedTensor(packed.codes[::2], packed.scales[::2], "mxint8", 32, 64)
    assert torch.equal(unpack(half), unpack(packed)[::2])


def test_packed_bytes_are_what_the_format_says() -> None:
    for format, row in PACKED_FORMATS.items():
        assert pack(torch.randn(4, 128), format).nbytes * 8 == 512 * row.bits(32)


BAD_CALLS = {
    "pack: x must be a floating-point tensor, got torch.int64": lambda: pack(torch.arange(4)),
    "pack: x must have at least one dimension": lambda: pack(torch.tensor(1.0)),
    "pack: group_size 48 is not allowed. Allowed: 16, 32, 64, 128": lambda: pack(
        torch.randn(4), "mxint8", 48
    ),
    "pack: no packed format 'mxint7'. Allowed: mxint8, mxint4": lambda: pack(
        torch.randn(4), "mxint7"
    ),
    "unpack: dtype must be floating-point, got torch.int8": lambda: unpack(
        pack(torch.randn(4)), torch.int8
    ),
    "PackedTensor: codes must be uint8, got torch.int8": lambda: PackedTensor(
        torch.zeros(1, 8, dtype=torch.int8), torch.zeros(1, 1, dtype=torch.uint8), "mxint8", 32, 8
    ),
    r"PackedTensor: scales must be of shape \(…, 2\) for 40 columns": lambda: PackedTensor(
        torch.zeros(1, 40, dtype=torch.uint8),
        torch.zeros(1, 1, dtype=torch.uint8),
        "mxint8",
        32,
        40,
    ),
    "PackedTensor: codes and scales must have the same rows": lambda: PackedTensor(
        torch.zeros(2, 8, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8), "mxint8", 32, 8
    ),
}


@pytest.mark.parametrize("message", BAD_CALLS)
def test_a_bad_call_says_what_is_allowed(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BAD_CALLS[message]()


def test_a_spelling_has_its_group_size() -> None:
    x = torch.randn(3, 48)
    for text, name, size in (("mxint4/16", "mxint4", 16), ("int8/64", "int8_group", 64)):
        spelled, named = pack(x, text), pack(x, name, size)
        assert (spelled.format, spelled.group_size) == (name, size)
        assert torch.equal(spelled.codes, named.codes)
        assert torch.equal(spelled.scales, named.scales)
