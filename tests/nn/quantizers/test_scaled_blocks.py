"""Blocks of small floats with real scales: NVFP4, and FP8 in tiles."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from format_cases import awkward_blocks, finite_points, same
from torch import nn

from chop.errors import ConfigError
from chop.nn.quantizers import MXFP, NVFP4, FP8Block
from chop.nn.quantizers.codes import decode, encode, same_bits, tiles_of

ELEMENTS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
ON_DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FORMS = [NVFP4(), NVFP4(block_size=7), FP8Block(block_size=(8, 8)), FP8Block("e5m2")]


def cast(x, kind):
    """Round to a type of ml_dtypes; beyond the largest value it saturates."""
    largest = float(ml_dtypes.finfo(kind).max)
    return np.clip(x, -largest, largest).astype(kind).astype(np.float32)


def by_nvidia(rows, size):
    """NVFP4 in numpy, one block at a time: the words of its definition, in float32."""
    one = np.float32
    tensor = max(one(np.abs(rows).max()) / one(6 * 448), one(2.0**-126))
    result = np.zeros_like(rows)
    for place in np.ndindex(rows.shape[0], rows.shape[1] // size):
        at = (place[0], slice(place[1] * size, (place[1] + 1) * size))
        scale = cast(np.abs(rows[at]).max() / one(6) / tensor, ELEMENTS["e4m3"]) * tensor
        result[at] = cast(rows[at] / scale, ELEMENTS["e2m1"]) * scale if scale else rows[at] * 0
    return result


def by_tile(matrix, size, kind):
    """FP8 with a float32 scale per square tile, in numpy."""
    largest, result = np.float32(float(ml_dtypes.finfo(kind).max)), np.zeros_like(matrix)
    for i, j in np.ndindex(-(-matrix.shape[0] // size), -(-matrix.shape[1] // size)):
        at = (slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size))
        scale = max(np.abs(matrix[at]).max() / largest, np.float32(2.0**-126))
        result[at] = cast(matrix[at] / scale, kind) * scale
    return result


def matrices():
    """Matrices with wide and narrow ranges, ties, zeros, subnormal and huge numbers."""
    generator = torch.Generator().manual_seed(1)
    plain = torch.randn(24, 64, generator=generator)
    points = finite_points(randoms=200)
    yield plain
    yield torch.ldexp(plain, torch.randint(-12, 12, (24, 64), generator=generator))
    yield (plain * 8).round() / 8
    yield plain * 1e-37
    yield torch.zeros(24, 64)
    yield points[: len(points) // 64 * 64].reshape(-1, 64) / 4


@pytest.mark.parametrize("x", [*matrices()])
@pytest.mark.parametrize("size", [16, 32])
def test_nvfp4_is_the_definition_in_numpy(x, size):
    expected = torch.from_numpy(by_nvidia(x.numpy(), size))
    assert same(NVFP4(block_size=size).quantize(x), expected)


@pytest.mark.parametrize("x", [*matrices()])
@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
@pytest.mark.parametrize("size", [8, 128])
def test_fp8_in_tiles_is_the_definition_in_numpy(x, element, size):
    expected = torch.from_numpy(by_tile(x.numpy(), size, ELEMENTS[element]))
    assert same(FP8Block(element, block_size=(size, size)).quantize(x), expected)


def test_every_code_at_every_scale_of_nvfp4_is_a_value():
    table = np.arange(16, dtype=np.uint8).view(ELEMENTS["e2m1"]).astype(np.float32)
    codes = np.arange(1, 127, dtype=np.uint8).view(ELEMENTS["e4m3"]).astype(np.float32)
    x = torch.from_numpy(codes[:, None] * np.float32(0.01) * table)
    form = NVFP4(tensor_scale=0.01)
    coded = encode(x, form)
    assert same(form.quantize(x), x) and coded is not None
    assert same_bits(decode(coded), x)
    assert coded.scale.values[4:].tolist() == list(range(1, 127))
    assert coded.codes.tolist() == [i | (i + 1) << 4 for i in range(0, 16, 2)] * 126


def test_a_block_too_small_for_its_scale_is_zero_with_its_signs():
    x = torch.ones(2, 16)
    x[1] = -(2.0**-20)
    y = NVFP4().quantize(x)
    assert torch.equal(y[1], torch.zeros(16)) and bool(y[1].signbit().all())


def test_a_measured_tensor_scale_spreads_what_is_not_finite():
    x = torch.ones(2, 32)
    x[0, 0] = math.inf
    assert NVFP4().quantize(x).isnan().all()
    assert NVFP4(tensor_scale=1.0).quantize(x).isnan().sum() == 16
    assert FP8Block(block_size=(1, 8)).quantize(x).isnan().sum() == 8


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_have_the_bits_of_the_format_and_give_the_values_back(form, dtype):
    for seed in range(20):
        x = torch.randn(40, 72, generator=torch.Generator().manual_seed(seed)).to(dtype)
        y = form.quantize(x)
        coded = encode(y, form, tiles_of(form, x))
        assert coded is not None and same_bits(decode(coded), y)
        if dtype == torch.float32:
            assert encode(y, form) is not None  # the scales are found in the values
            size = coded.codes.nbytes + coded.scale.values.nbytes
            assert size * 8 <= form.bits * x.numel() * 1.1 + 32


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_values_of_other_formats_have_no_codes(form):
    assert encode(torch.randn(16, 64, generator=torch.Generator().manual_seed(0)), form) is None
    assert encode(awkward_blocks(32)[:8], form) is None


@pytest.mark.parametrize("device", ON_DEVICES)
@pytest.mark.parametrize("form", [*FORMS, MXFP("e2m3"), MXFP("e3m2")], ids=str)
def test_the_gradient_passes_straight_through_on_every_device(form, device):
    x = torch.randn(40, 72, generator=torch.Generator().manual_seed(2))
    leaf = x.to(device).requires_grad_()
    y = form(leaf)
    y.backward(torch.ones_like(y))
    assert same(y.detach().cpu(), form.quantize(x))
    assert torch.equal(leaf.grad, torch.ones_like(leaf))


def test_blocks_of_another_kind_have_no_tiles():
    assert tiles_of(MXFP("e2m1"), torch.ones(4, 32)) is None
    with pytest.raises(ConfigError, match=r"'/x' is not a block size"):
        FP8Block.read_group("x")


@pytest.mark.parametrize("name", ["nvfp4", "fp8_block"])
def test_a_layer_trains_in_the_format(name):
    from chop.nn.quantized import from_float

    torch.manual_seed(0)
    layer = from_float(nn.Linear(32, 8), {"name": name}, where="here")
    x, target = torch.randn(64, 32), torch.randn(64, 8)
    optimizer = torch.optim.Adam(layer.parameters(), 0.02)
    losses = []
    for _ in range(40):
        loss = (layer(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
