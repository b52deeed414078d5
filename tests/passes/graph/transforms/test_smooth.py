"""Scales move from activations into weights: outputs stay, and rounded outputs come nearer."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertModel,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from chop import MaseGraph
from chop.actions.post_training import quantize_with_data
from chop.errors import ConfigError
from chop.passes import quantize_transform_pass, smooth_transform_pass

INT8 = {"name": "scale_integer", "data_in_width": 8, "weight_width": 8, "bias_width": "NA"}
INT4 = {
    "name": "scale_integer",
    "weight_width": 4,
    "weight_granularity": "channel",
    "data_in_width": "NA",
    "bias_width": "NA",
}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 64,
}


def decoder(kind):
    config, cls = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "gemma": (GemmaConfig, GemmaForCausalLM),
    }[kind]
    more = {"head_dim": 8} if kind == "gemma" else {}
    model = cls(config(**SIZES, num_key_value_heads=2, use_cache=False, **more)).eval()
    with torch.no_grad():  # a few channels are much stronger, as training leaves them
        for name, p in model.named_parameters():
            if "layernorm" in name:
                p[[3, 17]] += 30.0
    return model, {"input_ids": torch.randint(0, 64, (2, 12))}


def graph_of(model, batch):
    return MaseGraph(model, hf_input_names=list(batch), dummy_in=batch)


def logits(model, batch):
    with torch.no_grad():
        return model(**batch)["logits"].double()


@pytest.mark.share(2)
@pytest.mark.parametrize("style", ["smooth", "awq"])
@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_a_decoder_computes_what_it_did_and_rounds_to_less_error(kind, style):
    model, batch = decoder(kind)
    before = copy.deepcopy(model.state_dict())
    expected = logits(model, batch)
    config = INT8 if style == "smooth" else INT4
    rules = {
        "by": ["name", "type"],
        "linear": {"config": config},
        "lm_head": {"config": {"name": None}},
    }
    plain, graph = graph_of(model, batch), graph_of(model, batch)
    _, info = smooth_transform_pass(graph, {"data": [batch], "style": style, **rules})
    ends = {name.rpartition(".")[2] for site in info["sites"] for name in site["readers"]}
    # norms -> projections, gated product -> down, values of grouped queries -> output
    assert ends >= {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    torch.testing.assert_close(logits(graph.model, batch), expected, rtol=1e-4, atol=1e-4)
    assert all(site["after"] >= site["before"] for site in info["sites"])
    assert any(site["after"] > site["before"] + 1 for site in info["sites"])
    for each in (plain, graph):
        quantize_transform_pass(each, rules)
    errors = [(logits(g.model, batch) - expected).square().sum() for g in (plain, graph)]
    assert errors[1] < 0.8 * errors[0]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_an_encoder_moves_scales_of_values_alone():
    sizes = SIZES | {"max_position_embeddings": 16}
    model = BertModel(BertConfig(**sizes), add_pooling_layer=False).eval()
    batch = {"input_ids": torch.randint(0, 64, (2, 12))}
    graph = graph_of(model, batch)
    _, info = smooth_transform_pass(graph, {"data": [batch], "alpha": 0.5})
    # what norms give is added to what follows: it is not for linear layers alone
    readers = [name for site in info["sites"] for name in site["readers"]]
    assert readers == ["encoder.layer.0.attention.output.dense"]
    expected = model(**batch)["last_hidden_state"]
    torch.testing.assert_close(graph.model(**batch)["last_hidden_state"], expected)


class Gated(nn.Module):
    """Sites that may be scaled, and such as may not."""

    def __init__(self, variant):
        super().__init__()
        self.variant = variant
        self.norm = nn.LayerNorm(16)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.last = nn.Linear(16, 16)
        self.factor = nn.Parameter(torch.rand(16) + 0.5)
        if variant == "tied":
            self.second.weight = self.first.weight
        with torch.no_grad():
            self.norm.weight.copy_(torch.logspace(-1, 1, 16))

    def forward(self, x):
        y = self.norm(x)
        if self.variant == "functional":
            y = F.layer_norm(x, (16,), self.factor)
        if self.variant == "residual":
            return self.last(y) + y
        if self.variant == "twice":
            return self.last(self.last(y))
        if self.variant == "product":
            return self.last(torch.sigmoid(self.first(x)) * self.second(x))
        if self.variant == "relu":
            return self.last(torch.relu(self.first(x)))
        if self.variant == "gelu":
            return self.last(F.gelu(self.first(x)))
        return self.last(torch.tanh(self.first(y) + self.second(y)))


SITES = {
    "plain": [["first", "second"]],
    "functional": [["first", "second"]],
    "tied": [],
    "residual": [],
    "twice": [],
    "product": [["last"]],
    "relu": [["last"]],
    "gelu": [],
}


@pytest.mark.parametrize("variant", SITES)
def test_sites_are_those_where_factors_pass_exactly(variant):
    model, data = Gated(variant), [torch.randn(32, 16) for _ in range(2)]
    graph = MaseGraph(model, dummy_in=data[0])
    _, info = smooth_transform_pass(graph, {"data": data, "alpha": 0.5})
    assert [site["readers"] for site in info["sites"]] == SITES[variant]
    torch.testing.assert_close(graph.model(data[1]), model(data[1]))


def test_smoothing_then_rounding_in_one_call_beats_rounding_alone():
    model, data = Gated("plain"), [torch.randn(64, 16) for _ in range(3)]
    rules = {"linear": {"config": INT8 | {"weight_width": 4, "data_in_width": 4}}}
    errors = {}
    for method in ("nearest", "smooth", "smooth,gptq"):
        graph = MaseGraph(model, dummy_in=data[0])
        found = quantize_with_data(graph, rules, data, method, observer="mse")
        with torch.no_grad():
            errors[method] = float((graph.model(data[2]) - model(data[2])).square().sum())
    assert [site["readers"] for site in found["smooth"]] == [["first", "second"]]
    assert errors["smooth,gptq"] < errors["nearest"] and errors["smooth"] < errors["nearest"]


def test_factors_do_not_spoil_the_layer_that_makes_the_channels():
    model, data = Gated("relu"), [torch.randn(64, 16) for _ in range(2)]
    with torch.no_grad():
        model.first.bias[:4] = -100.0  # never on: their factors would be far from the others'
        model.first.weight[4:8] *= 0.01
    rules = {"linear": {"config": INT8 | {"bias_width": 8}}}
    errors = []
    for method in ("nearest", "smooth"):
        graph = MaseGraph(model, dummy_in=data[0])
        quantize_with_data(graph, rules, data, method)
        with torch.no_grad():
            errors.append(float((graph.model(data[1]) - model(data[1])).square().sum()))
    assert errors[1] < 1.1 * errors[0]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"alpha": 1.5}, r"smooth.alpha: must be from 0 to 1, got 1.5"),
        ({}, r"smooth: give rules to choose factors by .* or alpha"),
        ({"alpha": 0.5}, r"smooth.data: expected an iterable of batches"),
    ],
)
def test_wrong_arguments_are_told(args, told):
    graph = MaseGraph(Gated("plain"), dummy_in=torch.randn(4, 16))
    with pytest.raises(ConfigError, match=told):
        smooth_transform_pass(graph, args)
