"""Rounding that is learned from what blocks of layers give."""

import copy

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.errors import ConfigError
from chop.nn.quantizers.stored_scale import with_stored_scale
from chop.passes.graph.transforms.gptq import gptq_transform_pass
from chop.passes.graph.transforms.learned_rounding import blocks, learned_rounding_transform_pass
from chop.passes.graph.transforms.quantize import quantize_transform_pass
from chop.passes.ptq.sites.rounded_layers import layers_with_own_weights

FLOAT_DATA = {"data_in_width": "NA", "bias_width": "NA"}
FORMATS = {
    "groups": {"name": "scale_integer", "weight_width": 3, "weight_granularity": "group",
               "weight_group_size": 8},
    "whole range": {"name": "scale_integer", "weight_width": 3, "weight_narrow": False,
                    "weight_granularity": "channel"},
    "fixed": {"name": "integer", "weight_width": 4, "weight_frac_width": 4},
    "mxint": {"name": "mxint", "weight_width": 3},
    "minifloat": {"name": "minifloat_denorm", "weight_width": 6, "weight_exponent_width": 3},
    "block_log": {"name": "block_log", "weight_width": 4},
}  # fmt: skip
LAYERS = ("linear", "conv1d", "conv2d")


class Residual(nn.Module):
    """Two branches beside a stream, then a head; sizes are read from the stream."""

    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)
        self.mix, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = x + self.down(self.up(x) * torch.sigmoid(self.gate(x)))
        x = x + torch.tanh(self.mix(x)).view(x.shape[0], -1)
        return self.head(x)


class Convolutions(nn.Module):
    """Two convolutions and a head; the activation writes in place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, stride=2)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(54, 3)

    def forward(self, x):
        return self.head(self.relu(self.second(self.relu(self.first(x)))).flatten(1))


def quantized(model, config, x):
    graph = MaseGraph(model, dummy_in=x)
    rules = {op: {"config": config | FLOAT_DATA} for op in LAYERS}
    quantize_transform_pass(graph, rules)
    return graph


def samples(count, *shape):
    draw = torch.Generator().manual_seed(8)
    return [torch.randn(16, *shape, generator=draw).cumsum(-1) / 2 for _ in range(count)]


def error(model, reference, data):
    with torch.no_grad():
        return sum(float((model(x) - reference(x)).square().sum()) for x in data)


def test_blocks_are_stretches_through_which_one_value_passes():
    graph = quantized(Residual(), FORMATS["mxint"], torch.randn(4, 16))
    layers = layers_with_own_weights(graph, "here")
    found = list(blocks(graph, layers, 1))
    names = [[str(node.target) for node, _ in block.layers] for block in found]
    assert names == [["up", "gate", "down"], ["mix"], ["head"]]
    assert [len(block.results) for block in found] == [1, 1, 1]
    (whole,) = blocks(graph, layers, 5)
    assert len(whole.layers) == 5 and whole.end.op == "output"


@pytest.mark.share(2)
@pytest.mark.parametrize("name", FORMATS)
def test_learning_lowers_the_error_in_every_format(name, tmp_path):
    torch.manual_seed(1)
    model = Residual()
    before = copy.deepcopy(model.state_dict())
    data = samples(12, 16)
    graph = quantized(model, FORMATS[name], data[0])
    plain = error(graph.model, model, data[8:])
    args = {"data": data[:8], "steps": 60, "layers_per_block": 5}
    _, info = learned_rounding_transform_pass(graph, args)
    assert error(graph.model, model, data[8:]) < 0.8 * plain
    assert all(block["after"] >= block["before"] for block in info["blocks"])
    for layer in (m for m in graph.model.modules() if hasattr(m, "quantizers")):
        form = with_stored_scale(layer, "weight", layer.quantizers["weight"])
        assert torch.equal(form(layer.weight.detach()), layer.weight.detach())  # on the grid
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    graph.export(tmp_path / "learned")
    loaded = MaseGraph.from_checkpoint(tmp_path / "learned")
    assert torch.equal(loaded.model(data[9]), graph.model(data[9]))


@pytest.mark.parametrize("name", ["groups", "mxint"])
def test_convolutions_learn_too_and_activations_in_place_do_no_harm(name):
    torch.manual_seed(1)
    model, data = Convolutions(), samples(8, 2, 7, 7)
    graph = quantized(model, FORMATS[name], data[0])
    plain = error(graph.model, model, data[5:])
    args = {"data": data[:5], "steps": 40, "layers_per_block": 3}
    learned_rounding_transform_pass(graph, args)
    assert error(graph.model, model, data[5:]) < 0.9 * plain
    for layer in (m for m in graph.model.modules() if hasattr(m, "quantizers")):
        form = with_stored_scale(layer, "weight", layer.quantizers["weight"])
        assert torch.equal(form(layer.weight.detach()), layer.weight.detach())  # on the grid


@pytest.mark.slow
def test_learning_goes_on_from_rounding_by_effect_and_is_the_same_every_time():
    torch.manual_seed(1)
    model, data = Residual(), samples(12, 16)
    graph = quantized(model, FORMATS["groups"], data[0])
    rounded, again = copy.deepcopy(graph), copy.deepcopy(graph)
    gptq_transform_pass(rounded, {"data": data[:8]})
    args = {"data": data[:8], "steps": 60, "start": "gptq", "layers_per_block": 5}
    learned_rounding_transform_pass(graph, args)
    learned_rounding_transform_pass(again, args)
    start = error(rounded.model, model, data[:8])
    assert error(graph.model, model, data[:8]) < 0.9 * start
    assert torch.equal(graph.model(data[9]), again.model(data[9]))


WRONG = {
    "steps": ({"steps": 0}, "learned_rounding.steps: must be at least 1, got 0"),
    "layers": ({"layers_per_block": 0}, "layers_per_block: must be at least 1, got 0"),
    "reach": ({"reach": 3.0}, r"learned_rounding.reach: must lie in \(0, 2\], got 3.0"),
    "data": ({}, "learned_rounding.data: expected an iterable of batches, got NoneType"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_told(name):
    args, told = WRONG[name]
    graph = quantized(Residual(), FORMATS["mxint"], torch.randn(2, 16))
    with pytest.raises(ConfigError, match=told):
        learned_rounding_transform_pass(graph, args)


def test_a_float_graph_has_nothing_to_learn():
    graph = MaseGraph(Residual(), dummy_in=torch.randn(2, 16))
    with pytest.raises(ConfigError, match=r"learned_rounding: the graph has no quantised weight"):
        learned_rounding_transform_pass(graph, {"data": [torch.randn(2, 16)]})
