"""Norms and rotations in one call: equal to their definitions, and to them alone where asked."""

import pytest
import torch

from chop.kernels import rows
from chop.kernels.rows import rms_norm, rotate

WIDTHS = (1, 2, 15, 16, 17, 64, 1024)


def defined_norm(x, weight, eps):
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def defined_rotation(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_a_norm_is_its_definition_in_float64(width, scale):
    x, weight = torch.randn(3, 5, width) * scale, torch.randn(width)
    y = rms_norm(x, (width,), weight, 1e-5)
    expected = defined_norm(x, weight, 1e-5)
    assert y.dtype == torch.float32 and y.shape == x.shape
    assert torch.allclose(y.double(), expected, rtol=2e-6, atol=1e-30)


def test_rows_that_are_no_numbers_stay_none():
    x = torch.ones(3, 32)
    x[0, 3], x[1, 4] = torch.nan, torch.inf
    y = rms_norm(x, (32,), torch.ones(32))
    assert y[0].isnan().all() and y[1, 4].isnan() and not y[1, 5] and y[2].isfinite().all()


@pytest.mark.parametrize("tokens, batch, tables", [(1, 1, 1), (7, 1, 1), (3, 2, 2), (3, 2, 1)])
def test_a_rotation_is_its_definition_bit_for_bit(tokens, batch, tables):
    x = torch.randn(batch, tokens, 6, 32).transpose(1, 2)
    angles = torch.randn(tables, 1, tokens, 32)
    y = rotate(x, angles.cos(), angles.sin())
    assert torch.equal(y, defined_rotation(x, angles.cos(), angles.sin()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_and_layouts_take_the_definition(dtype, monkeypatch):
    monkeypatch.setattr(rows, "library", lambda: pytest.fail("no kernel takes these"))
    x, angles = torch.randn(2, 4, 3, 8, dtype=dtype), torch.randn(1, 1, 3, 8, dtype=dtype)
    y = rotate(x, angles.cos(), angles.sin())
    assert y.dtype == dtype and torch.equal(y, defined_rotation(x, angles.cos(), angles.sin()))
    assert rms_norm(x, (8,), torch.ones(8, dtype=dtype)).dtype == dtype
    table = torch.randn(3, 8)
    monkeypatch.undo()
    assert torch.equal(rotate(x.float(), table, table), defined_rotation(x.float(), table, table))
    apart = torch.randn(2, 8, 3).mT
    expected = defined_norm(apart, torch.ones(8), 1e-6)
    assert torch.allclose(rms_norm(apart, (8,), torch.ones(8)).double(), expected)


def test_gradients_are_those_of_the_definition():
    x, weight = torch.randn(2, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    rms_norm(x, (8,), weight).square().sum().backward()
    other, again = (t.detach().clone().requires_grad_() for t in (x, weight))
    defined_norm(other, again, 1e-6).square().sum().backward()
    assert torch.allclose(x.grad, other.grad, atol=1e-4)
    assert torch.allclose(weight.grad, again.grad, atol=1e-4)


def test_without_a_compiler_the_definition_runs(monkeypatch):
    monkeypatch.setattr(rows, "library", lambda: None)
    x, weight = torch.randn(4, 16), torch.randn(16)
    expected = defined_norm(x, weight, 1e-6)
    assert torch.allclose(rms_norm(x, (16,), weight).double(), expected, rtol=1e-5)


def test_a_compiler_sees_the_definition():
    x, weight = torch.randn(2, 4, 3, 8), torch.randn(8)
    angles = torch.randn(1, 1, 3, 8)

    def both(x):
        return rotate(rms_norm(x, (8,), weight), angles.cos(), angles.sin())

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), both(x), atol=1e-6)
