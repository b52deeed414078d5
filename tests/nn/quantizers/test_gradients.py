"""The straight-through gradient is the slope of the surrogate."""

from dataclasses import replace

import pytest
import torch
from format_cases import CASES, label

from chop.nn.quantizers import (
    FP8,
    Binary,
    Bypass,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    ScaleInteger,
    kernels,
)


def points_off_the_kinks(quantizer):
    """Inputs inside, outside and near the range, none where the slope jumps."""
    edges = torch.tensor([v for v in quantizer.range if abs(v) < 1e6], dtype=torch.float64)
    near = torch.cat([edges * scale + 0.01 for scale in (1.001, 0.999, 2.0, 0.3)])
    return torch.cat([near, torch.linspace(-3.017, 3.021, 25, dtype=torch.float64)])


@pytest.mark.parametrize("ste", ["masked", "identity"])
@pytest.mark.parametrize("quantizer", CASES, ids=label)
def test_the_gradient_is_the_finite_difference_of_the_surrogate(quantizer, ste):
    quantizer = replace(quantizer, ste=ste)
    x = points_off_the_kinks(quantizer).requires_grad_()
    weights = torch.linspace(0.5, 2.0, x.numel(), dtype=torch.float64)
    (gradient,) = torch.autograd.grad(quantizer(x), x, weights)
    step = 1e-6
    value = x.detach()
    slope = (quantizer.surrogate(value + step) - quantizer.surrogate(value - step)) / (2 * step)
    assert torch.allclose(gradient, slope * weights, atol=1e-6)


@pytest.mark.parametrize("quantizer", CASES, ids=label)
def test_the_gradient_is_the_same_in_single_precision(quantizer):
    wide = points_off_the_kinks(quantizer)
    grads = []
    for x in (wide.clone(), wide.float()):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(quantizer(x), x, torch.ones_like(x))
        grads.append(gradient.float())
    assert torch.equal(*grads)


def test_saturated_inputs_get_no_gradient_unless_asked():
    x = torch.tensor([-9.0, 0.3, 9.0], requires_grad=True)
    assert torch.autograd.grad(Integer(8, 4)(x).sum(), x)[0].tolist() == [0, 1, 0]
    assert torch.autograd.grad(Integer(8, 4, ste="identity")(x).sum(), x)[0].tolist() == [1, 1, 1]


def test_the_edges_of_the_range_pass_the_gradient():
    x = torch.tensor([-1.0, 1.0, 1.0000001], requires_grad=True)
    assert torch.autograd.grad(Binary()(x).sum(), x)[0].tolist() == [1, 1, 0]


def test_an_unmasked_gradient_is_passed_on_without_a_copy():
    x = torch.randn(4, 32, requires_grad=True)
    gradient = torch.randn(4, 32)
    for quantizer in (MXInt(8), Integer(8, 4, ste="identity")):
        (back,) = torch.autograd.grad(quantizer(x), x, gradient)
        assert back.data_ptr() == gradient.data_ptr()


@pytest.mark.skipif(kernels.library() is None, reason="needs a C++ compiler")
def test_a_gradient_that_nothing_clips_is_passed_on_without_a_copy():
    x = torch.randn(40, 50).clamp(-3, 3).requires_grad_()
    gradient = torch.randn(40, 50)
    for quantizer in (Integer(8, 4), FP8(), MinifloatDenorm(8, 4), MinifloatIEEE(8, 4), Log(8)):
        (back,) = torch.autograd.grad(quantizer(x), x, gradient)
        assert back.data_ptr() == gradient.data_ptr()
        (masked,) = torch.autograd.grad(quantizer(x * 0 + 1e30), x, gradient)
        assert masked.count_nonzero() == 0


def test_bypass_is_the_tensor_itself():
    x = torch.randn(3, requires_grad=True)
    assert Bypass()(x) is x


def test_given_channel_scales_mask_per_channel():
    quantizer = ScaleInteger(8, scale=(0.01, 1.0), granularity="channel")
    x = torch.full((2, 1), 2.0, requires_grad=True)
    quantizer(x).sum().backward()
    assert x.grad.flatten().tolist() == [0, 1]


def test_non_contiguous_gradients_are_masked():
    x = torch.randn(5, 7, requires_grad=True)
    gradient = torch.randn(7, 5).t()
    (back,) = torch.autograd.grad(Binary()(x), x, gradient)
    assert torch.equal(back, torch.where(x.detach().abs() <= 1, gradient, 0.0))


def test_second_derivatives_exist():
    x = torch.tensor([0.3, 20.0], requires_grad=True)
    (first,) = torch.autograd.grad((Integer(8, 4)(x) ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.allclose(second, torch.tensor([6 * 0.3125, 0.0]))


def test_no_gradient_is_recorded_without_need():
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert not Integer(8, 4)(x).requires_grad
    assert not Integer(8, 4)(x.detach()).requires_grad
