"""Clipped ranges, corrected biases, equalised channels."""

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.errors import ConfigError
from chop.nn.quantizers.stored_scale import with_stored_scale
from chop.passes.graph.transforms.correct_bias import correct_bias_transform_pass
from chop.passes.graph.transforms.equalize import equalize_transform_pass
from chop.passes.graph.transforms.gptq import clip_transform_pass
from chop.passes.graph.transforms.quantize import quantize_transform_pass

FLOAT_DATA = {"data_in_width": "NA", "bias_width": "NA"}
FORMATS = {
    "groups": {"name": "scale_integer", "weight_width": 3, "weight_granularity": "group",
               "weight_group_size": 16, **FLOAT_DATA},
    "tensor": {"name": "scale_integer", "weight_width": 4, **FLOAT_DATA},
    "mxint": {"name": "mxint", "weight_width": 3, **FLOAT_DATA},
    "fixed": {"name": "integer", "weight_width": 4, "weight_frac_width": 3, **FLOAT_DATA},
}  # fmt: skip


def convolutions(bias=True):
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=bias), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=bias), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6, bias=bias), nn.LeakyReLU(),
        nn.Linear(6, 4, bias=bias),
    )  # fmt: skip


def images(count):
    draw = torch.Generator().manual_seed(7)
    return [torch.rand(16, 3, 9, 9, generator=draw) for _ in range(count)]


def quantized(model, config, x):
    graph = MaseGraph(model, dummy_in=x)
    quantize_transform_pass(graph, {op: {"config": config} for op in ("linear", "conv2d")})
    return graph


def error(model, reference, data):
    with torch.no_grad():
        return sum(float((model(x) - reference(x)).square().sum()) for x in data)


@pytest.mark.parametrize("name", ["groups", "tensor", "mxint"])
def test_ranges_that_clip_lower_the_error_with_data_and_without(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 8))
    with torch.no_grad():
        for layer in (model[0], model[2]):  # a few weights stand out
            layer.weight *= 1 + 4 * (torch.rand_like(layer.weight) > 0.98)
    data = [torch.randn(32, 64) * torch.logspace(0, -1, 64) for _ in range(8)]
    plain = error(quantized(model, FORMATS[name], data[0]).model, model, data[4:])
    for args in ({}, {"data": data[:4]}):
        graph = quantized(model, FORMATS[name], data[0])
        _, info = clip_transform_pass(graph, args)
        assert error(graph.model, model, data[4:]) < 0.98 * plain
        assert all(layer["rounded"] >= layer["plain"] for layer in info["layers"])
        layer = graph.modules["0"]
        form = with_stored_scale(layer, "weight", layer.quantizers["weight"])
        assert torch.equal(form(layer.weight.detach()), layer.weight.detach())  # on the grid


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["fixed", "mxint"])
def test_corrected_biases_lower_the_error_and_restore_the_means(name, bias, tmp_path):
    model, data = convolutions(bias), images(8)
    graph = quantized(model, FORMATS[name], data[0])
    before = {k: v.clone() for k, v in model.state_dict().items()}
    plain = error(graph.model, model, data[4:])
    _, info = correct_bias_transform_pass(graph, {"data": data[:4]})
    assert error(graph.model, model, data[4:]) < 0.5 * plain
    assert len(info["layers"]) == 4 and max(r["largest"] for r in info["layers"]) > 0
    means = [torch.stack([m(x).mean(0) for x in data[:4]]).mean(0) for m in (graph.model, model)]
    assert torch.allclose(*means, atol=1e-5)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    graph.export(tmp_path / "corrected")
    loaded = MaseGraph.from_checkpoint(tmp_path / "corrected")
    assert torch.equal(loaded.model(data[5]), graph.model(data[5]))


def test_equalised_models_give_what_they_gave_with_equal_ranges():
    model, x = convolutions(), images(1)[0]
    with torch.no_grad():
        model[0].weight *= torch.logspace(0, 2, 8).reshape(-1, 1, 1, 1)
        model[2].weight /= torch.logspace(0, 2, 8).reshape(1, -1, 1, 1)
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    expected = model(x)
    graph = MaseGraph(model, dummy_in=x)
    _, info = equalize_transform_pass(graph)
    assert [(p["writer"], p["readers"]) for p in info["pairs"]] == [
        ("0", ["2"]), ("2", ["6"]), ("6", ["8"])
    ]  # fmt: skip
    assert torch.allclose(graph.model(x), expected, atol=1e-5)
    made = graph.modules["0"].weight.abs().flatten(1).amax(1)
    read = graph.modules["2"].weight.abs().movedim(1, 0).flatten(1).amax(1)
    assert torch.allclose(made, read, rtol=1e-2)
    assert all(torch.equal(v, kept[k]) for k, v in model.state_dict().items())
    errors = []
    for source in (MaseGraph(model, dummy_in=x), graph):
        rules = {op: {"config": FORMATS["tensor"]} for op in ("linear", "conv2d")}
        quantize_transform_pass(source, rules)
        errors.append(error(source.model, model, [x]))
    assert errors[1] < 0.5 * errors[0]


class Unequal(nn.Module):
    """Channels that pass no other function than a positive scale would, or are read twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.c(torch.relu(self.a(x))) + self.b(nn.functional.gelu(self.b(x)))


def test_layers_that_cannot_be_equalised_stay_as_they_are():
    model, x = Unequal(), torch.randn(3, 6)
    graph = MaseGraph(model, dummy_in=x)
    _, info = equalize_transform_pass(graph)
    assert info["pairs"] == [{"writer": "a", "readers": ["c"]}]
    assert graph.modules["b"].weight is model.b.weight


WRONG = {
    "clip": (clip_transform_pass, {}, "clip: the graph has no quantised weight. Run quantize_tr"),
    "bias": (correct_bias_transform_pass, {}, "correct_bias: the graph has no quantised weight"),
    "rounds": (equalize_transform_pass, {"rounds": 0}, "equalize.rounds: must be at least 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_told(name):
    run, args, told = WRONG[name]
    graph = MaseGraph(convolutions(), dummy_in=images(1)[0])
    with pytest.raises(ConfigError, match=told):
        run(graph, args)


def test_equalising_comes_before_quantising():
    graph = quantized(convolutions(), FORMATS["mxint"], images(1)[0])
    with pytest.raises(ConfigError, match=r"equalize: the graph has quantised layers. Equalise"):
        equalize_transform_pass(graph)
    correct_bias_transform_pass(graph, {"data": images(1)})


def test_a_layer_that_is_called_twice_keeps_its_bias(notices):
    graph = MaseGraph(Unequal(), dummy_in=torch.randn(3, 6))
    quantize_transform_pass(graph, {"linear": {"config": FORMATS["mxint"]}})
    _, info = correct_bias_transform_pass(graph, {"data": [torch.randn(8, 6)]})
    assert [record["module"] for record in info["layers"]] == ["a", "c"]
    assert any("'b' is called several times, and left" in text for text in notices)
