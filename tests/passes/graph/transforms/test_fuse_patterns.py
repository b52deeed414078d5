"""Layers that follow or stand beside each other become one, where that changes nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from passes.graphs import annotated, graph_of
from torch import nn
from zoo import case

import chop.passes as passes
from chop import MaseGraph
from chop.kernels import QLinearPacked, pack
from chop.kernels.fused import AddLayerNorm, LinearActivation
from chop.kernels.layers import unpacked_weight
from chop.passes.graph.transforms.fuse_patterns import PATTERNS, FusePatternsArgs

BERT, GROUPED = "BERT classification", "grouped_attention"
DECODERS = {"rounded_norm", GROUPED, "rms_norm", "rotary"}


def fuse(graph, *patterns):
    return passes.fuse_patterns_transform_pass(graph, {"patterns": list(patterns)})


def test_the_table_is_what_the_pass_offers():
    assert set(FusePatternsArgs().patterns) == set(PATTERNS)


def test_every_pattern_is_found_in_bert_and_gradients_stay():
    given = case(BERT)
    graph, info = passes.fuse_patterns_transform_pass(annotated(BERT))
    assert {s["pattern"] for s in info["sites"] if s["fused"]} == set(PATTERNS) - DECODERS
    model = copy.deepcopy(given.model)
    table = {"bert.embeddings.word_embeddings.weight", "classifier.weight"}
    for each in (model, graph.model):
        each(**given.inputs).logits.square().sum().backward()
    found = dict(graph.model.named_parameters())
    assert all(
        torch.allclose(found[name].grad, p.grad, atol=1e-6)
        for name, p in model.named_parameters()
        if name in table
    )


def test_heads_that_are_repeated_for_groups_are_not_copied(tmp_path):
    given = case("Llama")
    config = given.model.config
    assert config.num_key_value_heads < config.num_attention_heads
    before, _ = fuse(annotated("Llama"), "attention")
    graph, info = fuse(copy.deepcopy(before), GROUPED)
    assert info["fused"] == config.num_hidden_layers
    copies = [n for n in before.fx_graph.nodes if n.target == "expand"]
    left = [n for n in graph.fx_graph.nodes if n.target == "expand"]
    assert len(copies) - len(left) == 2 * config.num_hidden_layers
    batch = given.inputs | {"attention_mask": torch.ones_like(given.inputs["input_ids"])}
    batch["attention_mask"][0, :2] = 0
    with torch.no_grad():
        expected = before.model(**batch).logits
        assert torch.equal(graph.model(**batch).logits, expected)
        graph.export(tmp_path / "grouped")
        again = MaseGraph.from_checkpoint(tmp_path / "grouped").model
        assert torch.equal(again(**batch).logits, expected)
    assert fuse(graph, GROUPED)[1]["fused"] == 0


def test_heads_that_are_not_repeated_say_so():
    _, info = fuse(annotated("GPT-2"), "attention", GROUPED)
    reasons = [site["reason"] for site in info["sites"] if site["pattern"] == GROUPED]
    assert reasons and all("not repeated" in reason for reason in reasons)


def test_norms_and_rotations_of_a_decoder_are_one_call_each(tmp_path):
    given = case("Llama")
    before = annotated("Llama")
    depth = given.model.config.num_hidden_layers
    graph, info = fuse(copy.deepcopy(before), "rotary")
    assert info["fused"] == 2 * depth
    with torch.no_grad():
        expected = before.model(**given.inputs).logits
        assert torch.equal(graph.model(**given.inputs).logits, expected)
    graph, info = fuse(graph, "rms_norm")
    assert info["fused"] == 2 * depth + 1
    assert not [n for n in graph.fx_graph.nodes if n.target in (torch.rsqrt, torch.cat, "pow")][1:]
    with torch.no_grad():
        y = graph.model(**given.inputs).logits
        assert torch.allclose(y, expected, atol=1e-5)
        graph.export(tmp_path / "fused")
        again = MaseGraph.from_checkpoint(tmp_path / "fused").model
        assert torch.equal(again(**given.inputs).logits, y)


def test_norms_and_rotations_give_the_models_gradients():
    given = case("Llama")
    graph, _ = fuse(annotated("Llama"), "rotary", "rms_norm")
    model = copy.deepcopy(given.model)
    for each in (model, graph.model):
        each(**given.inputs).logits.square().sum().backward()
    found = dict(graph.model.named_parameters())
    assert all(
        torch.allclose(found[name].grad, p.grad, atol=1e-4, rtol=1e-4)
        for name, p in model.named_parameters()
    )


def test_a_quantised_norm_is_not_fused():
    graph = annotated("Llama")
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
    graph, _ = passes.quantize_transform_pass(graph, {"mul": {"config": config}})
    _, info = fuse(graph, "rms_norm", "rotary")
    assert info["fused"] == 0 and any("quantised" in s["reason"] for s in info["sites"])


class Projections(nn.Module):
    def __init__(self, *biases):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 3 + i, bias=b) for i, b in enumerate(biases))

    def forward(self, x):
        return torch.cat([layer(x) for layer in self.layers], -1)


def test_projections_of_one_input_become_one_product():
    model, x = Projections(True, False, True), torch.randn(2, 6)
    graph, info = fuse(graph_of(model, {"x": x}), "merge_projections")
    linears = [m for m in graph.model.modules() if isinstance(m, nn.Linear)]
    assert info["fused"] == 1 and len(linears) == 1 and linears[0].out_features == 3 + 4 + 5
    assert torch.allclose(graph.model(x), model(x), atol=1e-6)


def test_projections_that_share_a_weight_stay():
    model = Projections(True, True)
    model.layers[1] = nn.Linear(6, 3)
    model.layers[1].weight = model.layers[0].weight
    _, info = fuse(graph_of(model, {"x": torch.randn(2, 6)}), "merge_projections")
    assert info["fused"] == 0
    assert "shares its weight with another layer" in info["sites"][0]["reason"]


def test_a_frozen_projection_is_not_merged_with_a_trained_one():
    model = Projections(True, True)
    model.layers[0].requires_grad_(False)
    _, info = fuse(graph_of(model, {"x": torch.randn(2, 6)}), "merge_projections")
    assert "differ in dtype, device or whether they train" in info["sites"][0]["reason"]


def test_a_layer_and_its_activation_become_one_module():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(approximate="tanh")), torch.randn(2, 4)
    graph, info = fuse(graph_of(model, x), "linear_activation")
    (layer,) = [m for m in graph.model.modules() if isinstance(m, LinearActivation)]
    assert info["fused"] == 1 and layer.activation == "gelu_tanh"
    assert torch.equal(graph.model(x), model(x))


def test_an_activation_after_something_else_says_what():
    model = nn.Sequential(nn.LayerNorm(4), nn.ReLU())
    _, info = fuse(graph_of(model, torch.randn(2, 4)), "linear_activation")
    assert "(layer_norm) where linear (linear) is expected" in info["sites"][0]["reason"]


class Residual(nn.Module):
    def __init__(self, *, twice=False):
        super().__init__()
        self.fc, self.norm, self.twice = nn.Linear(4, 4), nn.LayerNorm(4), twice

    def forward(self, x):
        y = self.norm(x + self.fc(x))
        return self.norm(y + x) if self.twice else y


def test_a_sum_and_its_norm_become_one_and_the_input_is_not_overwritten():
    model, x = Residual(), torch.randn(2, 4)
    graph, info = fuse(graph_of(model, {"x": x}), "add_layer_norm")
    (layer,) = [m for m in graph.model.modules() if isinstance(m, AddLayerNorm)]
    kept = x.clone()
    with torch.no_grad():
        assert torch.allclose(graph.model(x), model(x), atol=1e-6)
    assert info["fused"] == 1 and layer.overwrites and torch.equal(x, kept)


def test_a_norm_that_is_called_twice_stays():
    _, info = fuse(graph_of(Residual(twice=True), {"x": torch.randn(2, 4)}), "add_layer_norm")
    assert info["fused"] == 0 and "is called elsewhere too" in info["sites"][0]["reason"]


def packed_llama(format="mxint4", **quantized):
    given = case("Llama")
    graph = MaseGraph(copy.deepcopy(given.model), given.hf_input_names, given.inputs)
    if quantized:
        passes.quantize_transform_pass(graph, {"by": "type", "linear": {"config": quantized}})
    passes.pack_weights_transform_pass(graph, {"format": format})
    return graph, given.inputs


@pytest.mark.parametrize("config", [{}, {"name": "mxint", "weight_width": 4, "data_in_width": 8}])
def test_packed_projections_of_one_input_are_one_product(config, tmp_path):
    graph, inputs = packed_llama(**config)
    with torch.no_grad():
        expected = graph.model(**inputs).logits
        _, info = passes.fuse_patterns_transform_pass(graph, {"patterns": ["merge_projections"]})
        y = graph.model(**inputs).logits
        graph.export(tmp_path / "fused")
        again = MaseGraph.from_checkpoint(tmp_path / "fused").model(**inputs).logits
    layers = [m for m in graph.model.modules() if isinstance(m, QLinearPacked)]
    depth = case("Llama").model.config.num_hidden_layers
    assert info["fused"] == 2 * depth and len(layers) == 4 * depth + 1
    assert torch.equal(again, y)
    if config:  # a kernel of ours adds up what a row has, whatever rows lie beside it
        assert torch.equal(y, expected)
    else:  # many rows of x are multiplied by torch, whose sums depend on the sizes of a product
        assert torch.allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_packed_projections_in_different_formats_stay_apart():
    graph, _ = packed_llama()
    attention = graph.model.get_submodule("model.layers.0.self_attn")
    other = unpacked_weight(attention.k_proj)
    attention.k_proj = QLinearPacked(pack(other, "mxfp4"), None)
    _, info = passes.fuse_patterns_transform_pass(graph, {"patterns": ["merge_projections"]})
    reasons = [r["reason"] for r in info["sites"]]
    assert "the packed projections differ in their formats, or round their results" in reasons
