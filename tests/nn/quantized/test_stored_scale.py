"""Scales that a layer stores: values by the definition, gradients of a learned step size."""

import copy

import pytest
import torch
from torch import nn

from chop.errors import ConfigError
from chop.nn.quantized.modules.linear import LinearScaleInteger

SHAPES = {"tensor": (), "channel": (6,), "group": (6, 3)}


def layer(granularity, **more):
    config = {
        "name": "scale_integer",
        "weight_width": 4,
        "weight_granularity": granularity,
        "weight_group_size": 8,
        "weight_scale": "stored",
        "data_in_width": "NA",
        "bias_width": "NA",
    }
    made = LinearScaleInteger(20, 6, config=config | more)
    made.register_buffer("weight_scale", torch.rand(SHAPES[granularity]) / 10 + 0.02)
    return made


def by_definition(made, granularity):
    weight, scale = made.weight.detach(), made.weight_scale
    result = torch.empty_like(weight)
    for row in range(6):
        for column in range(20):
            place = {"tensor": (), "channel": (row,), "group": (row, column // 8)}[granularity]
            step = scale[place].item()
            code = max(-7, min(7, round(weight[row, column].item() / step)))
            result[row, column] = code * step
    return result


@pytest.mark.parametrize("granularity", SHAPES)
def test_values_are_codes_times_the_stored_scales(granularity):
    made, x = layer(granularity), torch.randn(3, 20)
    expected = nn.functional.linear(x, by_definition(made, granularity), made.bias)
    assert torch.allclose(made(x), expected, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(made(x), made(x))
        before = made(x)
        made.weight_scale.mul_(2)  # what was kept for the frozen weight is not used again
        assert not torch.equal(made(x), before)
    assert torch.equal(copy.deepcopy(made)(x), made(x))


def test_a_scale_that_trains_gets_the_gradient_of_a_learned_step_size():
    made = layer("channel")
    scale = nn.Parameter(made.weight_scale.clone())
    del made.weight_scale
    made.weight_scale = scale
    made(torch.eye(20)).sum().backward()  # every weight counts once
    steps = (made.weight / scale[:, None]).detach()
    inside = steps.abs() <= 7
    expected = torch.where(inside, steps.round() - steps, 7 * steps.sign()).sum(1)
    pace = (20 * 7) ** -0.5  # 20 weights share a scale, and the largest integer is 7
    assert torch.allclose(scale.grad, pace * expected, atol=1e-4)
    assert torch.equal(made.weight.grad, inside.float())
    made.weight.requires_grad_(False)  # the scale trains also where the weight does not
    before, scale.grad = scale.grad, None
    made(torch.eye(20)).sum().backward()
    assert torch.equal(scale.grad, before)


def test_a_zero_point_that_trains_moves_with_what_is_clipped():
    config = {"name": "scale_integer", "data_in_scale": "stored", "data_in_is_signed": False}
    made = LinearScaleInteger(5, 5, bias=False, config=config | {"weight_width": "NA"})
    made.data_in_scale = nn.Parameter(torch.tensor(0.5))
    made.data_in_zero_point = nn.Parameter(torch.tensor(9.6))
    with torch.no_grad():
        made.weight.copy_(torch.eye(5))
    x = torch.tensor([[-9.0, -4.9, 0.6, 100.0, 130.0]])
    y = made(x)
    assert y.tolist() == [[-5.0, -5.0, 0.5, 100.0, 122.5]]  # (0 … 255 - 10) · 0.5
    y.sum().backward()
    pace = (5 * 255) ** -0.5
    assert made.data_in_zero_point.grad.item() == pytest.approx(-2 * 0.5 * pace)
    by_step = -10 + (-10 + 9.8) + (1 - 1.2) + 0 + 245
    assert made.data_in_scale.grad.item() == pytest.approx(by_step * pace, rel=1e-5)


def test_missing_and_misshapen_scales_are_told():
    made = layer("group")
    made.weight_scale = torch.ones(6, 4)
    with pytest.raises(ConfigError, match=r"shape \(6, 4\); granularity 'group' takes \(6, 3\)"):
        made(torch.randn(1, 20))
    del made.weight_scale
    with pytest.raises(ConfigError, match="weight_scale = 'stored', and the layer has no tensor"):
        made(torch.randn(1, 20))
    with pytest.raises(ConfigError, match="scale = 'stored' and rounding = 'stochastic' exclude"):
        layer("tensor", weight_rounding="stochastic")
