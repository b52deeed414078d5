"""Calibration chooses what formats leave open, layer by layer, and quantising applies it."""

import copy

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.actions.post_training import quantize_with_data
from chop.errors import ConfigError
from chop.nn.quantizers import Integer
from chop.passes import calibrate_analysis_pass, gptq_transform_pass, quantize_transform_pass
from chop.passes.ptq.observe.observers import OBSERVERS

SCALED = {"name": "scale_integer", "weight_granularity": "channel"}
CONFIGS = {
    "tensors": {"name": "scale_integer"},
    "channels": SCALED | {"data_in_granularity": "channel", "data_in_axis": -1},
    "groups": {
        "name": "scale_integer",
        "weight_granularity": "group",
        "weight_group_size": 8,
        "data_in_granularity": "group",
        "data_in_group_size": 12,
    },
    "unsigned": {"name": "scale_integer", "data_in_is_signed": False},
    "fixed": {"name": "integer", "data_in_width": 8, "weight_width": 8},
    "float": {
        "name": "minifloat_denorm",
        "data_in_width": 8,
        "data_in_exponent_width": 4,
        "weight_width": 8,
        "weight_exponent_width": 4,
    },
    "log": {"name": "log", "data_in_width": 8, "weight_width": 8},
    "rule": {"name": "mxfp", "data_in_element": "e2m3", "weight_element": "e2m3"},
}


def mlp():
    return nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 16), nn.ReLU())


def batches(count=3, scale=0.01):
    return [scale * torch.randn(40, 24) for _ in range(count)]


def relative_error(model, reference, x):
    with torch.no_grad():
        expected = reference(x)
        return float((model(x) - expected).square().sum() / expected.square().sum())


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_chosen_is_applied_and_survives_a_checkpoint(name, tmp_path):
    model, data = mlp(), batches()
    graph = MaseGraph(model, dummy_in=data[0])
    graph, info = calibrate_analysis_pass(
        graph, {"data": data, "linear": {"config": CONFIGS[name]}}
    )
    assert torch.equal(graph.model(data[0]), model(data[0]))  # nothing is changed yet
    for node in graph.nodes:
        noted = node.meta["mase"].software.calibration
        if node.op == "call_module" and node.target in ("0", "2"):
            assert {"data_in", "weight", "bias"} == set(noted)
    quantize_transform_pass(graph, info["config"])
    limit = {"log": 0.02, "float": 5e-3}.get(name, 2e-3)
    assert relative_error(graph.model, model, data[1]) < limit
    graph.export(tmp_path / "calibrated")
    loaded = MaseGraph.from_checkpoint(tmp_path / "calibrated")
    assert torch.equal(loaded.model(data[1]), graph.model(data[1]))
    assert torch.equal(copy.deepcopy(graph).model(data[1]), graph.model(data[1]))


@pytest.mark.share(2)
@pytest.mark.parametrize("observer", OBSERVERS)
def test_every_observer_in_one_call(observer):
    model, data = mlp(), batches(scale=30.0)
    graph = MaseGraph(model, dummy_in=data[0])
    found = quantize_with_data(
        graph, {"linear": {"config": SCALED}}, data, "gptq", observer=observer
    )
    assert relative_error(graph.model, model, data[0]) < 5e-3
    assert {row["operand"] for row in found["calibration"]} == {"data_in", "weight", "bias"}
    assert isinstance(graph.modules["0"].quantizers["data_in"].scale, float)


def test_static_scales_are_those_of_the_data_and_not_of_the_input():
    data = batches()
    graph = MaseGraph(mlp(), dummy_in=data[0])
    args = {"data": data, "observer": "min_max", "linear": {"config": SCALED}}
    _, info = calibrate_analysis_pass(graph, args)
    largest = max(float(x.abs().max()) for x in data)
    assert info["config"]["0"]["config"]["data_in_scale"] == pytest.approx(largest / 127)
    quantize_transform_pass(graph, info["config"])
    one, other = data[0][:1], 100 * data[0][:1]
    torch.testing.assert_close(graph.model(one), graph.model(torch.cat([one, other]))[:1])


def test_functions_get_their_point_too():
    class Product(nn.Module):
        def forward(self, x, y):
            return torch.matmul(x, y) + 1.0

    x, y = 0.1 * torch.randn(2, 4, 6), 30 * torch.randn(2, 6, 4)
    graph = MaseGraph(Product(), dummy_in={"x": x, "y": y})
    config = {"name": "integer", "data_in_width": 8}
    weighted = config | {"weight_width": 6}
    args = {"data": [{"x": x, "y": y}], "observer": "min_max"}
    for given, second in ((config, "data_in_1"), (weighted, "weight")):
        _, info = calibrate_analysis_pass(
            graph, {**args, "matmul": {"config": given}, "add": {"config": config}}
        )
        found = info["config"]["matmul"]["config"]
        wide = Integer(found[f"{second}_width"], found[f"{second}_frac_width"])
        assert wide.range[1] >= y.abs().max() - 1 and found["data_in_0_frac_width"] >= 7
    quantize_transform_pass(graph, info["config"])
    assert (graph.model(x, y) - x @ y - 1).abs().max() < 1


def test_what_the_config_gives_stands_and_operands_are_chosen():
    data = batches()
    graph = MaseGraph(mlp(), dummy_in=data[0])
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 3, "weight_width": 8}
    _, info = calibrate_analysis_pass(graph, {"data": data, "linear": {"config": config}})
    assert info["config"]["0"]["config"]["data_in_frac_width"] == 3
    args = {"data": data, "operands": ["weight"], "linear": {"config": SCALED}}
    _, info = calibrate_analysis_pass(graph, args)
    assert {row["operand"] for row in info["table"]} == {"weight"}
    quantize_transform_pass(graph, info["config"])
    layer = graph.modules["0"]
    assert layer.quantizers["data_in"].scale is None and layer.quantizers["weight"].is_stored
    assert layer.quantizers["bias"].scale is None  # takes nothing of the weight's


def test_a_layer_called_twice_sees_both_inputs():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(100 * self.layer(x))

    x = torch.randn(16, 8)
    graph = MaseGraph(Twice(), dummy_in=x)
    args = {"data": [x], "observer": "min_max", "linear": {"config": {"name": "scale_integer"}}}
    _, info = calibrate_analysis_pass(graph, args)
    expected = 100 * graph.modules["layer"](x).abs().max().item()
    assert info["config"]["layer"]["config"]["data_in_scale"] == pytest.approx(expected / 127)
    quantize_transform_pass(graph, info["config"])


def test_memory_is_that_of_one_block_however_deep_the_model():
    def kept(depth):
        blocks = (nn.Sequential(nn.Linear(24, 24), nn.GELU()) for _ in range(depth))
        graph = MaseGraph(nn.Sequential(*blocks), dummy_in=batches()[0])
        args = {"data": batches(), "observer": "min_max", "linear": {"config": SCALED}}
        return calibrate_analysis_pass(graph, args)[1]["kept_bytes"]

    assert kept(12) == kept(24) == kept(48) > 0


def test_scales_of_a_token_each_are_measured_at_every_call():
    x = torch.randn(3, 5, 24) * torch.logspace(-3, 3, 5)[:, None]
    model = nn.Sequential(nn.Linear(24, 16, bias=False))
    graph = MaseGraph(model, dummy_in=x)
    config = SCALED | {"data_in_granularity": "group", "data_in_group_size": 24}
    quantize_transform_pass(graph, {"linear": {"config": config}})
    error = (graph.model(x) - model(x)).norm(dim=-1) / model(x).norm(dim=-1)
    assert error.max() < 0.03  # of every token, the smallest among them


def test_rounding_by_effect_keeps_the_format_of_the_bias(tmp_path):
    data = batches(scale=1.0)
    graph = MaseGraph(mlp(), dummy_in=data[0])
    quantize_transform_pass(graph, {"linear": {"config": SCALED}})
    gptq_transform_pass(graph, {"data": data})
    graph.export(tmp_path / "rounded")
    loaded = MaseGraph.from_checkpoint(tmp_path / "rounded")
    assert torch.equal(loaded.model(data[0]), graph.model(data[0]))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({}, r"calibrate: the rules give no format to anything"),
        ({"linear": {"config": SCALED}}, "calibrate.data: expected an iterable of batches"),
        (
            {"linear": {"config": SCALED}, "observer": "maximum"},
            r"calibrate.observer: .*'maximum'",
        ),
        ({"linaer": {"config": SCALED}}, "linaer: matches nothing by type"),
    ],
)
def test_wrong_arguments_are_told(args, told):
    graph = MaseGraph(mlp(), dummy_in=batches()[0])
    with pytest.raises(ConfigError, match=told):
        calibrate_analysis_pass(graph, args)


class Product(torch.nn.Module):
    def forward(self, x, y):
        return torch.matmul(x, y)


def products(batch):
    return {"x": torch.randn(batch, 4, 8), "y": torch.randn(batch, 8, 6)}


@pytest.mark.parametrize("role", ["data_in", "weight", "data_in_0", "data_in_1"])
def test_scales_of_the_channels_of_a_product_fit_every_batch(role):
    mg = MaseGraph(Product(), dummy_in=products(8))
    config = {"name": "scale_integer", f"{role}_granularity": "channel"}
    rules = {"data": [products(8), products(8)], "matmul": {"config": config}}
    mg, found = calibrate_analysis_pass(mg, rules)
    quantize_transform_pass(mg, found["config"])
    for batch in (8, 32, 1):
        inputs = products(batch)
        assert mg.model(**inputs).shape == (batch, 4, 6)


def test_a_scale_for_each_row_of_a_batch_is_refused_by_node():
    mg = MaseGraph(Product(), dummy_in=products(8))
    config = {"name": "scale_integer", "weight_granularity": "channel", "weight_axis": 0}
    words = r"node 'matmul': data_in_1 .* the batch\. Allowed: another weight_axis, such as -1"
    with pytest.raises(ConfigError, match=words):
        calibrate_analysis_pass(mg, {"data": [products(8)], "matmul": {"config": config}})
