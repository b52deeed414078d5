"""Removed channels and heads: smaller weights, fitting shapes, and the output of what is left."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from compression_models import (
    QUANTIZE,
    annotated,
    bert_batch,
    bert_graph,
    logits,
    mlp_graph,
)
from torch import Tensor, nn
from zoo import case

import chop.passes as passes
from chop import MaseGraph
from chop.errors import PassError
from chop.ir.dims import DIMENSION_RULES
from chop.ir.node_arguments import tensors_in
from chop.passes.prune.channel_rules import OWN_RULES

HEADS = {"weight": {"sparsity": 0.5, "granularity": "head"}}
INTERMEDIATE = ["intermediate.dense"]


def channels(**fields: Any) -> dict[str, Any]:
    return {"weight": {"sparsity": 0.5, "granularity": "channel", **fields}}


def kill(model: nn.Module, rows: list[str], columns: list[str], gone: list[int]) -> None:
    """Make channels count for nothing: zero rows that make them, zero columns that take them."""
    with torch.no_grad():
        for path in rows:
            layer = model.get_submodule(path)
            layer.weight[gone] = 0.0
            if layer.bias is not None:
                layer.bias[gone] = 0.0
        for path in columns:
            model.get_submodule(path).weight[:, gone] = 0.0


def prune(graph: MaseGraph, args: dict[str, Any]) -> dict[str, Any]:
    return passes.prune_transform_pass(graph, args)[1]["structure"]


def sizes(graph: MaseGraph, path: str) -> list[int]:
    return list(graph.model.get_submodule(path).weight.shape)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 6, 3, padding=1)
        self.outer = nn.Conv2d(6, 8, 3, padding=1, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.fc = nn.Linear(8 * 2 * 2, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.stem(x)))
        x = x + self.outer(torch.relu(self.inner(x)))
        x = nn.functional.adaptive_avg_pool2d(self.depthwise(x), 2)
        return self.fc(torch.flatten(x, 1))


class Branches(nn.Module):
    """Two branches side by side, a gate on halves, and sizes written as numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, 8)
        self.right = nn.Linear(6, 4)
        self.norm = nn.LayerNorm(12)
        self.wide = nn.Linear(12, 20)
        self.out = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.left(x), self.right(x)], dim=-1)
        value, gate = self.wide(torch.relu(both[..., :12])).chunk(2, dim=-1)
        return self.out((value * torch.sigmoid(gate)).view(x.shape[0], 10))


class Attention(nn.Module):
    """Head counts and widths as numbers in views, scores by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.proj = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * 0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, 16))


def graph_of(model: nn.Module, *shape: int) -> MaseGraph:
    return MaseGraph(model.eval(), dummy_in={"x": torch.randn(shape)})


def residual_graph() -> MaseGraph:
    torch.manual_seed(0)
    model = Residual()
    nn.init.uniform_(model.bn.running_mean)
    nn.init.uniform_(model.bn.running_var, 0.5, 1.5)
    return graph_of(model, 2, 3, 8, 8)


# -- what is left computes what it did -------------------------------------------------------


def test_removing_dead_heads_leaves_the_output() -> None:
    graph = bert_graph()
    gone = [*range(8), *range(16, 24)]  # heads 0 and 2
    for layer in ("bert.encoder.layer.0.attention", "bert.encoder.layer.1.attention"):
        made = [f"{layer}.self.{name}" for name in ("query", "key", "value")]
        kill(graph.model, made, [f"{layer}.output.dense"], gone)
    before = logits(graph.model)
    info = prune(graph, HEADS)
    torch.testing.assert_close(logits(graph.model), before, rtol=1e-5, atol=1e-6)
    assert sizes(graph, "bert.encoder.layer.1.attention.self.value") == [16, 32]
    assert sizes(graph, "bert.encoder.layer.1.attention.output.dense") == [32, 16]
    assert [(r["kind"], r["before"], r["after"]) for r in info["removed"]] == [("heads", 4, 2)] * 2


def test_removing_dead_intermediate_channels_leaves_the_output() -> None:
    graph = bert_graph()
    for i in (0, 1):
        layer = f"bert.encoder.layer.{i}"
        kill(graph.model, [f"{layer}.intermediate.dense"], [f"{layer}.output.dense"], [*range(24)])
    before = logits(graph.model)
    prune(graph, channels(target_modules=INTERMEDIATE))
    torch.testing.assert_close(logits(graph.model), before, rtol=1e-5, atol=1e-6)
    assert sizes(graph, "bert.encoder.layer.0.intermediate.dense") == [24, 32]


def test_removing_dead_channels_of_a_residual_net_leaves_the_output() -> None:
    graph = residual_graph()
    x = torch.randn(3, 3, 10, 12)
    with torch.no_grad():
        gone = [1, 2, 5, 6]
        kill(graph.model, ["stem", "outer", "depthwise"], ["inner"], gone)
        graph.model.fc.weight.view(5, 8, 4)[:, gone] = 0.0
        kill(graph.model, ["inner"], ["outer"], [0, 1, 2])
    before = graph.model(x)
    prune(graph, channels())
    torch.testing.assert_close(graph.model(x), before, rtol=1e-5, atol=1e-6)
    model = graph.model
    assert (model.stem.out_channels, model.bn.num_features, model.depthwise.groups) == (4, 4, 4)
    assert (model.inner.in_channels, model.inner.out_channels) == (4, 3)
    assert sizes(graph, "fc") == [5, 16] and model.bn.running_mean.shape == (4,)


def test_removing_dead_channels_of_branches_leaves_the_output() -> None:
    torch.manual_seed(0)
    graph, x = graph_of(Branches(), 2, 6), torch.randn(5, 6)
    model = graph.model
    kill(model, ["left"], [], [0, 1, 2, 3])
    kill(model, ["right"], [], [0, 1])
    kill(model, [], ["wide"], [0, 1, 2, 3, 8, 9])
    kill(model, ["wide"], [], [*range(5), *range(10, 15)])
    kill(model, [], ["out"], [*range(5)])
    before = model(x)
    prune(graph, channels())
    torch.testing.assert_close(graph.model(x), before, rtol=1e-5, atol=1e-6)
    assert [sizes(graph, p) for p in ("left", "right", "wide", "out")] == [
        [4, 6],
        [2, 6],
        [10, 6],
        [3, 5],
    ]


def test_packed_heads_with_sizes_as_numbers_are_rewritten() -> None:
    torch.manual_seed(0)
    graph, x = graph_of(Attention(), 2, 5, 16), torch.randn(3, 7, 16)
    head = [*range(4, 8), *range(12, 16)]  # heads 1 and 3
    kill(graph.model, ["qkv"], [], [i + 16 * part for part in range(3) for i in head])
    kill(graph.model, [], ["proj"], head)
    before = graph.model(x)
    prune(graph, HEADS)
    torch.testing.assert_close(graph.model(x), before, rtol=1e-5, atol=1e-6)
    assert sizes(graph, "qkv") == [24, 16] and sizes(graph, "proj") == [16, 8]


# -- what must hold --------------------------------------------------------------------------


def test_the_least_important_channels_go() -> None:
    graph = mlp_graph()
    with torch.no_grad():
        graph.model.fc1.weight[:8] *= 0.01
        graph.model.fc2.weight[:, :8] *= 0.01
        kept = graph.model.fc1.weight[8:].clone()
    prune(graph, channels(target_modules=["fc1"]))
    assert torch.equal(graph.model.fc1.weight, kept)


def test_parameters_are_as_claimed() -> None:
    graph = mlp_graph()
    info = prune(graph, channels())
    assert info["parameters_before"] == (8 + 1) * 16 + (16 + 1) * 12 + (12 + 1) * 4
    assert info["parameters"] == (8 + 1) * 8 + (8 + 1) * 6 + (6 + 1) * 4
    assert info["parameters"] == sum(p.numel() for p in graph.model.parameters())


def test_the_users_model_is_left_whole() -> None:
    model = Residual().eval()
    graph = graph_of(model, 2, 3, 8, 8)
    x = torch.randn(2, 3, 8, 8)
    before = model(x)
    prune(graph, channels())
    assert torch.equal(model(x), before)


def test_inputs_outputs_and_batch_sizes_keep_their_freedom() -> None:
    graph = bert_graph()
    prune(graph, HEADS)
    prune(graph, channels())
    for batch, length in ((1, 4), (5, 17)):
        assert graph.model(**bert_batch(batch, length))["logits"].shape == (batch, 2)


def test_global_scope_takes_more_from_the_family_that_matters_less() -> None:
    graph = mlp_graph()
    with torch.no_grad():
        graph.model.fc1.weight[:14] *= 1e-3
        graph.model.fc2.weight[:, :14] *= 1e-3
    removed = prune(graph, channels(scope="global"))["removed"]
    widths = {r["layers"][0]: (r["before"], r["after"]) for r in removed}
    assert widths["fc1"][1] == 2 and sum(after for _, after in widths.values()) == 14


def test_one_channel_always_stays() -> None:
    graph = mlp_graph()
    prune(graph, channels(sparsity=0.99))
    assert sizes(graph, "fc2") == [1, 1]


@pytest.mark.parametrize("method", ["random", "taylor"])
def test_other_methods_choose_channels(method: str) -> None:
    graph = mlp_graph()
    graph.model(torch.randn(4, 8)).square().sum().backward()
    prune(graph, channels(method=method))
    assert sizes(graph, "fc1") == [8, 8]


def test_quantised_and_masked_layers_shrink_with_their_masks(tmp_path: Any) -> None:
    graph = bert_graph()
    passes.quantize_transform_pass(graph, QUANTIZE)
    passes.prune_transform_pass(graph, {"weight": {"sparsity": 0.3}})
    prune(graph, HEADS)
    prune(graph, channels(target_modules=INTERMEDIATE))
    layer = graph.modules["bert.encoder.layer.0.attention.self.query"]
    assert type(layer).__name__ == "MaskedLinearInteger"
    assert layer.weight_mask.shape == layer.weight.shape == (16, 32)
    graph.export(tmp_path / "small")
    loaded = MaseGraph.from_checkpoint(tmp_path / "small")
    assert torch.equal(logits(loaded.model), logits(graph.model))
    assert torch.equal(logits(copy.deepcopy(graph).model), logits(graph.model))


def test_metadata_follows_the_new_shapes() -> None:
    graph = annotated(bert_graph())
    prune(graph, HEADS)
    prune(graph, channels(target_modules=INTERMEDIATE))
    passes.verify_metadata_analysis_pass(graph)
    node = next(n for n in graph.nodes if n.target == "bert.encoder.layer.0.output.dense")
    args = node.meta["mase"]["common"]["args"]
    assert args["weight"]["shape"] == [32, 24] and args["data_in_0"]["shape"][-1] == 24


def test_a_pruned_graph_trains() -> None:
    graph = residual_graph()
    prune(graph, channels())
    graph.model.train()(torch.randn(4, 3, 8, 8)).sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in graph.model.parameters())


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "name",
    [
        "Llama",
        "ResNet",
        "BERT question answering",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("Qwen3", "BART", "ViT", "ConvNeXt")),
    ],
)
def test_models_of_many_kinds_get_smaller_and_still_run(name: str) -> None:
    given = case(name)
    graph = MaseGraph(given.model, given.hf_input_names, given.inputs, **given.options)
    info = prune(graph, channels())
    assert info["parameters"] < 0.9 * info["parameters_before"]
    with torch.no_grad():
        for inputs in (given.inputs, given.other_inputs):
            shapes = [
                [t.shape for t in tensors_in(m(**inputs))] for m in (graph.model, given.model)
            ]
            assert shapes[0] == shapes[1]


def test_rules_of_its_own_are_dimension_rules() -> None:
    assert set(OWN_RULES) <= set(DIMENSION_RULES)


# -- bad input -------------------------------------------------------------------------------


def test_layers_whose_channels_are_needed_say_so() -> None:
    graph = mlp_graph()
    message = r"no channel of the chosen layers can be removed.* removable channels: fc1, fc2"
    with pytest.raises(PassError, match=message):
        prune(graph, channels(target_modules=["head"]))
    with pytest.raises(PassError, match=r"no head of the chosen layers.* removable heads: none"):
        prune(graph, HEADS)


class Sizes(nn.Module):
    """Two layers and, between them, a size that is computed."""

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 2)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, x, self.first(x))


@pytest.mark.parametrize(
    ("use", "node"),
    [
        (lambda m, x, y: m.second(y.view(x.shape[0], x.shape[1] * 2)), "'view'.* cannot run"),
        (lambda m, x, y: m.second(y) + torch.ones(y.shape[1]).sum(), r"'ones' gives \[\(4,\)\]"),
    ],
)
def test_a_size_the_rules_cannot_follow_leaves_the_graph_as_it_was(use: Any, node: str) -> None:
    graph, x = graph_of(Sizes(use), 3, 4), torch.randn(3, 4)
    before, code = graph.model(x), graph.model.code
    with pytest.raises(PassError, match=f"does not fit without the channels chosen: node {node}"):
        prune(graph, channels())
    assert torch.equal(graph.model(x), before) and graph.model.code == code
