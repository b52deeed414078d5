"""Packed weights with one offset per group: the native product against the plain one."""

from __future__ import annotations

import pytest
import torch

from chop.kernels import cpu
from chop.kernels.layers import QLinearPacked
from chop.kernels.ops import PackedTensor, multiply, offset_product, pack, packed_linear, unpack

ROWS = 6


def weight(columns: int, group: int) -> PackedTensor:
    plain = pack(torch.randn(ROWS, columns), "int4", group)
    offsets = torch.randn(ROWS, -(-columns // group))
    return PackedTensor(plain.codes, plain.scales, "int4", group, columns, offsets)


@pytest.mark.parametrize("columns, group", [(64, 32), (70, 32), (31, 32), (96, 16), (1, 32)])
@pytest.mark.parametrize("shape", [(), (1,), (3, 2), (cpu.MAX_BATCH,), (cpu.MAX_BATCH + 1,), (0,)])
def test_the_product_is_that_of_the_unpacked_weight(columns, group, shape):
    packed, x = weight(columns, group), torch.randn(*shape, columns)
    expected = x.double() @ unpack(packed).double().T
    tolerance = 1e-6 * columns  # float32 sums of products of size one
    assert torch.allclose(packed_linear(x, packed).double(), expected, atol=tolerance)
    layer = QLinearPacked(packed, torch.ones(ROWS))
    with torch.no_grad():
        assert torch.allclose(layer(x).double(), expected + 1, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_and_gradients_take_the_plain_product(dtype):
    packed, x = weight(64, 32), torch.randn(2, 64)
    parts = (packed.codes, packed.scales, None, "int4", 32)
    plain = multiply(x.to(dtype), *parts) + offset_product(x.to(dtype), packed.offsets, 32)
    assert torch.equal(packed_linear(x.to(dtype), packed), plain)
    leaf = x.clone().requires_grad_()
    packed_linear(leaf, packed).sum().backward()
    assert torch.allclose(leaf.grad, unpack(packed).sum(0).expand(2, -1), atol=1e-5)


def test_views_are_multiplied_as_their_values():
    packed, x = weight(64, 32), torch.randn(64, 3)
    expected = packed_linear(x.T.contiguous(), packed)
    assert torch.allclose(packed_linear(x.T, packed), expected, atol=1e-5)
