"""Attention is found as models write it, replaced by the fused call, and equal to it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from passes.graphs import annotated, graph_of
from torch import nn
from zoo import case

import chop.passes as passes
from chop import MaseGraph
from chop.ir.modes import ModeConstant
from chop.ir.ops import find_op, op_of_function
from chop.kernels import attention, scaled_dot_product_attention
from chop.nn.quantizers import MXInt

FUSED = {"BERT classification": 2, "GPT-2": 2, "Llama": 2, "ViT": 2, "T5": 6}
OTHERS = {"DistilBERT": 2, "BART": 6, "OPT": 2, "ALBERT": 2, "Qwen3": 2, "Swin": 4, "Mistral": 2}
CLOSE = 5e-6
"""A fused softmax sums in another order."""


def first_tensor(output):
    return output if torch.is_tensor(output) else next(iter(output.values()))


def fused_graph(name):
    given = case(name)
    model = copy.deepcopy(given.model)
    graph = MaseGraph(model, given.hf_input_names, given.inputs, **given.options)
    return passes.fuse_attention_transform_pass(graph)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", [
    *FUSED, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS),
])  # fmt: skip
def test_attention_is_fused_and_the_output_stays_at_both_shapes(name):
    graph, info = fused_graph(name)
    assert info["fused"] == {**FUSED, **OTHERS}[name]
    assert not [n for n in graph.nodes if "softmax" in n.name]
    for inputs in (case(name).inputs, case(name).other_inputs):
        with torch.no_grad():
            expected, found = case(name).model(**inputs), graph.model(**inputs)
        assert torch.allclose(first_tensor(found), first_tensor(expected), atol=CLOSE)


class Attention(nn.Module):
    """Attention with every part to choose."""

    def __init__(self, **parts):
        super().__init__()
        self.parts = {"scale": "mul", "mask": None, "dropout": 0.0, "dim": -1, **parts}
        self.dropout = nn.Dropout(self.parts["dropout"])

    def forward(self, q, k, v, mask=None):
        scores = q @ k.transpose(-1, -2)
        if self.parts["scale"] == "mul":
            scores = scores * 0.25
        if self.parts["scale"] == "div":
            scores = scores / 4.0
        if self.parts["scale"] == "tensor":
            scores = scores * v.abs().mean()
        if self.parts["mask"] == "fill":
            scores = scores.masked_fill(mask, -1e9)
        if self.parts["mask"] == "add":
            scores = mask + scores
        weights = F.softmax(scores, dim=self.parts["dim"])
        if self.parts["dropout"]:
            weights = self.dropout(weights)
        y = weights @ v
        return (y, weights) if self.parts.get("gives_weights") else y


def inputs(mask=None):
    given = {name: torch.randn(2, 3, 5, 8) for name in "qkv"}
    return given if mask is None else {**given, "mask": mask}


MASKS = {"add": lambda: torch.randn(2, 1, 5, 5), "fill": lambda: torch.rand(2, 1, 5, 5) > 0.5}


@pytest.mark.parametrize("mask", [None, "add", "fill"])
@pytest.mark.parametrize("scale", [None, "mul", "div"])
def test_scales_and_masks_are_taken_over(scale, mask):
    given = inputs(MASKS[mask]() if mask else None)
    model = Attention(scale=scale, mask=mask)
    graph, info = passes.fuse_attention_transform_pass(graph_of(model, given))
    assert info["fused"] == 1
    assert torch.allclose(graph.model(**given), model(**given), atol=CLOSE)


REASONS = {
    "the scale at 'mul' is not a number": {"scale": "tensor"},
    "'softmax' is over dimension -2, not over the keys": {"dim": -2},
    "'softmax' is used by 'matmul_1', 'output'; a fused kernel does not give it": {
        "gives_weights": True
    },
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_site_that_is_not_fused_says_why_and_stays(reason):
    model, given = Attention(**REASONS[reason]), inputs()
    graph = graph_of(model, given)
    before = [n.name for n in graph.nodes]
    graph, info = passes.fuse_attention_transform_pass(graph)
    (site,) = info["sites"]
    assert not site["fused"] and site["site"] == "softmax" and site["reason"] == reason
    assert [n.name for n in graph.nodes] == before


def test_a_softmax_that_is_no_attention_names_what_it_found():
    graph = graph_of(
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 2)), torch.ones(1, 4)
    )
    _, info = passes.fuse_attention_transform_pass(graph)
    assert "where output (matmul or bmm) is expected" in info["sites"][0]["reason"]


def test_quantised_products_are_left_alone():
    graph = annotated("BERT classification")
    config = {
        "by": "type",
        "default": {"config": {"name": None}},
        "matmul": {"config": {"name": "mxint"}},
    }
    passes.quantize_transform_pass(graph, config)
    _, info = passes.fuse_attention_transform_pass(graph)
    assert info["fused"] == 0 and "is quantised" in info["sites"][0]["reason"]


def test_dropout_keeps_its_rate_and_follows_the_mode():
    graph, _ = passes.fuse_attention_transform_pass(graph_of(Attention(dropout=0.5), inputs()))
    (rate,) = [m for m in graph.model.modules() if isinstance(m, ModeConstant)]
    assert (rate.train_value, rate.eval_value) == (0.5, 0.0)
    given = inputs()
    assert torch.equal(graph.model(**given), graph.model(**given))
    graph.model.train()
    assert not torch.equal(graph.model(**given), graph.model(**given))


def test_fused_attention_trains_as_the_original_without_dropout():
    model, given = Attention(mask="add"), inputs(MASKS["add"]())
    graph, _ = passes.fuse_attention_transform_pass(graph_of(model, given))
    gradients = []
    for run in (model, graph.model):
        q = given["q"].clone().requires_grad_()
        run(**{**given, "q": q}).square().sum().backward()
        gradients.append(q.grad)
    assert torch.allclose(*gradients, atol=1e-5)


class Grouped(nn.Module):
    def forward(self, q, k, v):
        heads = []
        for x in (k, v):
            batch, count, length, size = x.shape
            wide = x[:, :, None, :, :].expand(batch, count, 2, length, size)
            heads.append(wide.reshape(batch, count * 2, length, size))
        return F.softmax(q @ heads[0].transpose(2, 3) * 0.3, dim=-1) @ heads[1]


def test_grouped_heads_without_a_mask_are_not_repeated():
    given = {
        "q": torch.randn(2, 4, 5, 8),
        "k": torch.randn(2, 2, 5, 8),
        "v": torch.randn(2, 2, 5, 8),
    }
    graph, _ = passes.fuse_attention_transform_pass(graph_of(Grouped(), given))
    (call,) = [n for n in graph.nodes if n.target is scaled_dot_product_attention]
    assert call.kwargs["enable_gqa"] is True and call.args[1].name == "k"
    assert torch.allclose(graph.model(**given), Grouped()(**given), atol=CLOSE)


def test_a_fused_graph_is_saved_and_loaded(tmp_path):
    graph, _ = passes.fuse_attention_transform_pass(annotated("BERT classification"))
    graph.export(tmp_path / "fused")
    given = case("BERT classification").inputs
    again = MaseGraph.from_checkpoint(tmp_path / "fused")
    assert torch.equal(again.model(**given).logits, graph.model(**given).logits)


def fused_call(graph):
    (call,) = [n for n in graph.nodes if n.target is scaled_dot_product_attention]
    return call


def test_the_fused_call_is_the_op_that_torchs_function_is():
    graph, _ = passes.fuse_attention_transform_pass(graph_of(Attention(), inputs()))
    assert find_op(fused_call(graph)) is op_of_function(F.scaled_dot_product_attention)
    assert fused_call(graph).meta["mase"].common.mase_op == "scaled_dot_product_attention"


def test_fused_attention_is_quantised_as_torchs_is():
    given, config = inputs(), {"by": "type", "default": {"config": {"name": None}}}
    config["scaled_dot_product_attention"] = {"config": {"name": "mxint"}}
    graph, _ = passes.fuse_attention_transform_pass(graph_of(Attention(), given))
    graph, _ = passes.quantize_transform_pass(graph, config)
    q, k, v = (MXInt()(given[name]) for name in "qkv")
    expected = F.scaled_dot_product_attention(q, k, v, scale=0.25)
    assert torch.equal(graph.model(**given), expected)


class Fused(nn.Module):
    def forward(self, q, k, v):
        return scaled_dot_product_attention(q, k, v, scale=0.25)


def test_a_model_that_calls_our_function_is_captured_with_that_call():
    given = inputs()
    graph = graph_of(Fused(), given)
    assert fused_call(graph).kwargs["scale"] == 0.25
    assert torch.equal(graph.model(**given), Fused()(**given))


@pytest.mark.skipif(attention.library() is None, reason="needs a C++ compiler")
def test_a_fused_graph_runs_our_kernel_where_it_is_the_faster_one():
    given = {name: torch.randn(2, 4, 160, 64) for name in "qkv"}
    graph, _ = passes.fuse_attention_transform_pass(graph_of(Attention(), given))
    with torch.no_grad():
        found = graph.model(**given)
    assert torch.equal(found, attention.run(*given.values(), None, False, 0.25))
    assert torch.allclose(found, Attention()(**given), atol=CLOSE)
