"""Beyond rounding with feedback: scales fitted, weights decided again, drift undone."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.errors import ConfigError
from chop.nn.quantizers import ScaleInteger, parse_format
from chop.nn.quantizers.stored_scale import ScaledInteger
from chop.passes.graph.transforms.gptq import gptq_transform_pass
from chop.passes.graph.transforms.quantize import quantize_transform_pass
from chop.passes.ptq.observe.layerwise_run import PairedRun
from chop.passes.ptq.observe.row_sums import InputSums, sums_of
from chop.passes.ptq.solve.column_feedback import (
    compensating_weight,
    output_error,
    rounded_with_feedback,
)
from chop.passes.ptq.solve.rounding_refinement import moved_elements, refined, with_fitted_scales
from chop.passes.ptq.solve.weight_grid import weight_grid

GRANULARITIES = ("tensor", "channel", "group")


def problem(granularity, width=3, **settings):
    """A weight, the Hessian of inputs that are alike, and a grid; rounded with feedback."""
    draw = torch.Generator().manual_seed(3)
    weight = torch.randn(6, 12, generator=draw).double()
    x = torch.randn(80, 12, generator=draw).double().cumsum(1)
    form = ScaleInteger(width, granularity=granularity, group_size=4, **settings)
    grid, hessian = weight_grid(form, weight, "here"), x.T @ x
    found = rounded_with_feedback(weight, hessian, grid, damping=0.01, by_importance=True)
    return weight, hessian, grid, *found


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_fitted_scales_are_the_least_squares_solution(granularity):
    weight, hessian, grid, rounded, ranges = problem(granularity)
    values, fitted = with_fitted_scales(rounded, ranges, weight, hessian, grid)
    root = torch.linalg.cholesky(hessian).T  # x xᵀ = rootᵀ root, so errors are lengths
    whole = (rounded / grid.scales(ranges)[:, grid.groups]).round()
    apart = torch.stack([whole * (grid.groups == g) for g in range(grid.count)], -1)
    columns, wanted = torch.einsum("ij,rjg->rig", root, apart), weight @ root.T
    if granularity == "tensor":
        scales = torch.linalg.lstsq(columns.reshape(-1, 1), wanted.reshape(-1, 1)).solution
    else:
        scales = torch.linalg.lstsq(columns, wanted[:, :, None]).solution[:, :, 0]
    assert torch.allclose(grid.scales(fitted), scales.expand_as(fitted), rtol=1e-6)
    assert output_error(values - weight, hessian) < output_error(rounded - weight, hessian)


def test_groups_of_zeros_keep_their_scales():
    weight, hessian, grid, rounded, ranges = problem("group")
    rounded = rounded.clone()
    rounded[2, 4:8] = 0
    values, fitted = with_fitted_scales(rounded, ranges, weight, hessian, grid)
    assert fitted[2, 1] == ranges[2, 1] and torch.isfinite(fitted).all()
    assert not values[2, 4:8].any()


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_no_weight_can_be_moved_for_the_better_after_enough_rounds(granularity):
    weight, hessian, grid, rounded, ranges = problem(granularity)
    for _ in range(20):
        rounded = moved_elements(rounded, ranges, weight, hessian, grid)
    least = output_error(rounded - weight, hessian)
    scales = grid.scales(ranges)[:, grid.groups]
    for i in range(weight.numel()):
        for way in (-1, 1):
            other = rounded.clone().flatten()
            other[i] += way * scales.flatten()[i]
            other = grid.round(other.reshape(weight.shape), ranges[:, grid.groups])
            assert output_error(other - weight, hessian) >= least * (1 - 1e-9)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_rounds_lower_the_error_and_none_is_nothing(granularity):
    weight, hessian, grid, rounded, ranges = problem(granularity)
    values, fitted = refined(rounded, ranges, weight, hessian, grid, 4)
    assert output_error(values - weight, hessian) < 0.95 * output_error(rounded - weight, hessian)
    assert torch.allclose(grid.round(values, fitted[:, grid.groups]), values)  # on the grid
    assert refined(rounded, ranges, weight, hessian, grid, 0)[0] is rounded


def test_one_more_value_is_above_zero_where_the_weights_need_it_there():
    form = ScaleInteger(3, granularity="channel", narrow=False)  # -4 … 3
    weight = torch.tensor([[4.0, -1, 2, 3], [-4.0, 1, -2, -3]])
    grid = weight_grid(form, weight, "here")
    ranges = grid.chosen_range(weight, torch.ones(4))
    assert (ranges.sign() == torch.tensor([[-1.0], [1.0]])).all()
    error = (grid.round(weight, ranges) - weight).abs().amax()
    assert error < 0.13  # one step is 1; the ranges tried are 2 % apart
    both = weight_grid(ScaleInteger(3, granularity="channel"), weight, "here")
    assert (both.chosen_range(weight, torch.ones(4)) > 0).all()


def test_a_negative_stored_scale_turns_the_range_round():
    form = ScaleInteger(3, scale="stored", narrow=False)  # -4 … 3
    x = torch.tensor([-9.0, -3, -1, 0, 2, 9])
    assert ScaledInteger(form, torch.tensor(-1.0))(x).tolist() == [-3, -3, -1, 0, 2, 4]
    assert ScaledInteger(form, torch.tensor(1.0))(x).tolist() == [-4, -3, -1, 0, 2, 3]


def test_drift_is_made_up_for_by_least_squares():
    draw = torch.Generator().manual_seed(0)
    before, weight = torch.randn(90, 8, generator=draw), torch.randn(5, 8, generator=draw)
    now = (before + 0.3 * torch.randn(90, 8, generator=draw)).double()
    sums = InputSums(now.T @ now, (before - now).T @ now, now.sum(0), before.sum(0), len(now))
    got = compensating_weight(weight, sums, damping=1e-12)
    wanted = torch.linalg.lstsq(now, before.double() @ weight.double().T).solution.T
    assert torch.allclose(got, wanted, atol=1e-8)


@pytest.mark.parametrize(("noise", "low", "high"), [(0.0, 0.99, 1.0), (3.0, 0.0, 0.5)])
def test_a_move_that_follows_the_noise_of_the_rows_is_not_made_whole(noise, low, high):
    draw = torch.Generator().manual_seed(0)
    now = torch.randn(200, 40, generator=draw)
    weight = torch.randn(5, 40, generator=draw)
    lost = 0.1 * now.roll(1, 1) + noise * torch.randn(200, 40, generator=draw)
    sums = sums_of(now, now + lost)
    whole = compensating_weight(weight, replace(sums, halves=()), 1e-9) - weight.double()
    part = compensating_weight(weight, sums, 1e-9) - weight.double()
    share = float((part * whole).sum() / whole.square().sum())
    assert torch.allclose(part, share * whole, atol=1e-9)
    assert low <= share <= high + 1e-9


class Repeated(nn.Module):
    """A layer that is called twice, between two others."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.tanh(self.again(torch.tanh(self.first(x))))
        return self.last(torch.tanh(self.again(x)))


def test_a_paired_run_keeps_the_values_without_formats_whatever_becomes_of_the_weights():
    model = Repeated()
    graph = MaseGraph(model, dummy_in=torch.randn(2, 8))
    config = {"name": "mxint", "weight_width": 3, "data_in_width": 4}
    quantize_transform_pass(graph, {"linear": {"config": config}})
    batches = [torch.randn(4, 8) for _ in range(3)]
    with PairedRun(graph, batches, "here") as run:
        for node in [n for n in graph.nodes if n.op == "call_module"]:
            pairs = list(run.operands_of_calls([node]))
            run.remember(graph.modules[str(node.target)])
            graph.modules[str(node.target)].weight = nn.Parameter(torch.zeros(8, 8))
    hidden = torch.tanh(model.first(batches[2]))
    expected = torch.tanh(model.again(torch.tanh(model.again(hidden))))
    assert torch.allclose(pairs[2][1][0], expected, atol=1e-6)
    assert not torch.allclose(pairs[2][0][0], expected, atol=1e-2)
    assert graph.modules["first"].quantizers["weight"].width == 3


def deep():
    torch.manual_seed(4)
    widths = [32] * 6
    layers = [m for w in widths for m in (nn.Linear(w, w), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(32, 8))


def error_with(**args):
    """The error of the output on new data, with these arguments of the pass."""
    model = deep()
    draw = torch.Generator().manual_seed(6)
    mix = torch.randn(32, 32, generator=draw) * torch.logspace(0, -1, 32)
    data = [torch.randn(64, 32, generator=draw) @ mix for _ in range(10)]
    graph = MaseGraph(model, dummy_in=data[0])
    config = {"name": "scale_integer", "weight_width": 3, "weight_granularity": "group",
              "weight_group_size": 16, "data_in_width": "NA", "bias_width": "NA"}  # fmt: skip
    config["weight_narrow"] = args.pop("narrow", True)
    quantize_transform_pass(graph, {"linear": {"config": config}})
    gptq_transform_pass(graph, {"data": data[:6], **args})
    with torch.no_grad():
        return sum(float((graph.model(x) - model(x)).square().sum()) for x in data[6:])


@pytest.mark.slow
def test_each_refinement_lowers_the_error_on_new_data():
    plain = error_with(target="rounded", rounds=0)
    assert error_with(target="rounded", rounds=4) < 0.95 * plain
    assert error_with(target="float", rounds=0) < 0.95 * plain
    both = error_with()
    assert both < 0.85 * plain
    assert error_with(narrow=False) < 0.95 * both


def test_a_negative_number_of_rounds_is_told():
    graph = MaseGraph(deep(), dummy_in=torch.randn(2, 32))
    with pytest.raises(ConfigError, match=r"gptq.rounds: must be 0 or more, got -1"):
        gptq_transform_pass(copy.deepcopy(graph), {"data": [torch.randn(2, 32)], "rounds": -1})


@pytest.mark.parametrize("text", ["mxint4", "int4/32", "int4/channel", "nvfp4", "mxfp4"])
def test_ranges_of_slices_are_those_of_the_whole(text, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, 64, generator=generator).double()
    grid = weight_grid(parse_format(text), weight, "test")
    importance = torch.rand(64, generator=generator).double()
    whole = grid.chosen_range(weight, importance)
    monkeypatch.setattr("chop.passes.ptq.solve.weight_grid.AT_ONCE", 64 * 7)
    assert torch.equal(grid.chosen_range(weight, importance), whole)
