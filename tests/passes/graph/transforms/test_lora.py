"""Adapters leave the output as it is, train alone, and fuse into the weights beside them."""

from __future__ import annotations

import copy

import pytest
import torch
from compression_models import (
    QUANTIZE,
    annotated,
    bert_batch,
    bert_graph,
    logits,
    mlp,
    mlp_graph,
)
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ConfigError, PassError
from chop.nn.modules import LoRALinear
from chop.passes.graph.transforms.quantize import quantize_transform_pass

DOCUMENTED = {"rank": 6, "alpha": 1.0, "dropout": 0.5}


def train_steps(graph: MaseGraph, steps: int = 3) -> None:
    parameters = [p for p in graph.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.05)
    graph.model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        graph.model(**bert_batch())["loss"].backward()
        optimizer.step()
    graph.model.eval()


def classes(graph: MaseGraph) -> dict[str, type]:
    return {path: type(module) for path, module in graph.model.named_modules()}


def test_lora_insertion_leaves_the_output_unchanged() -> None:
    graph = bert_graph()
    before = logits(graph.model)
    graph, _ = passes.insert_lora_adapter_transform_pass(graph, DOCUMENTED)
    assert torch.equal(logits(graph.model), before)


def test_lora_keeps_the_bias() -> None:
    graph = mlp_graph()
    bias = graph.model.fc1.bias
    graph, _ = passes.insert_lora_adapter_transform_pass(graph)
    assert graph.model.fc1.bias is bias


def test_every_linear_layer_gets_an_adapter_at_its_own_path() -> None:
    graph = bert_graph()
    linear = [n for n, m in graph.model.named_modules() if isinstance(m, nn.Linear)]
    nodes = [(n.op, n.target) for n in graph.nodes]
    graph, info = passes.insert_lora_adapter_transform_pass(graph, DOCUMENTED)
    assert sorted(info["adapters"]) == sorted(linear)
    assert all(isinstance(graph.modules[path], LoRALinear) for path in linear)
    assert [(n.op, n.target) for n in graph.nodes] == nodes


def test_only_adapters_train() -> None:
    graph, info = passes.insert_lora_adapter_transform_pass(bert_graph(), DOCUMENTED)
    trained = {n for n, p in graph.model.named_parameters() if p.requires_grad}
    assert trained and all(n.endswith(("lora_A.weight", "lora_B.weight")) for n in trained)
    counted = sum(p.numel() for p in graph.model.parameters() if p.requires_grad)
    assert info["trainable"] == counted and info["share"] == counted / info["total"]


def test_training_moves_adapters_and_nothing_else() -> None:
    graph, _ = passes.insert_lora_adapter_transform_pass(bert_graph(), DOCUMENTED)
    before = {n: p.detach().clone() for n, p in graph.model.named_parameters()}
    train_steps(graph)
    moved = {n for n, p in graph.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {n for n in before if ".lora_" in n}


def test_modules_to_save_train_as_they_are() -> None:
    graph, info = passes.insert_lora_adapter_transform_pass(
        bert_graph(), {"rank": 2, "modules_to_save": ["classifier"]}
    )
    assert "classifier" not in info["adapters"]
    assert all(p.requires_grad for p in graph.model.classifier.parameters())


def test_the_scale_is_alpha_over_rank() -> None:
    graph, _ = passes.insert_lora_adapter_transform_pass(mlp_graph(), {"rank": 4, "alpha": 2.0})
    layer, x = graph.model.fc1, torch.randn(3, 8)
    nn.init.normal_(layer.lora_B.weight)
    wanted = layer.base_layer(x) + 0.5 * (x @ layer.lora_A.weight.T @ layer.lora_B.weight.T)
    torch.testing.assert_close(layer(x), wanted)


def test_target_patterns_choose_by_path_end_or_expression() -> None:
    _, by_end = passes.insert_lora_adapter_transform_pass(
        bert_graph(), {"rank": 2, "target_modules": ["query", "value"]}
    )
    assert len(by_end["adapters"]) == 4
    _, by_expression = passes.insert_lora_adapter_transform_pass(
        bert_graph(), {"rank": 2, "target_modules": [r"bert\.encoder\.layer\.1\..*dense"]}
    )
    assert len(by_expression["adapters"]) == 3


def test_fusing_keeps_the_output_and_restores_the_graph() -> None:
    graph = bert_graph()
    before, trained = classes(graph), {n for n, p in graph.model.named_parameters()}
    graph, _ = passes.insert_lora_adapter_transform_pass(graph, DOCUMENTED)
    train_steps(graph)
    adapted = logits(graph.model)
    graph, info = passes.fuse_lora_weights_transform_pass(graph)
    torch.testing.assert_close(logits(graph.model), adapted, rtol=1e-4, atol=1e-5)
    assert classes(graph) == before and "classifier" in info["fused"]
    assert {n for n, p in graph.model.named_parameters() if p.requires_grad} == trained


def test_fusing_restores_what_trained_before_the_insertion() -> None:
    graph = bert_graph()
    for parameter in graph.model.bert.embeddings.parameters():
        parameter.requires_grad_(False)
    before = {n: p.requires_grad for n, p in graph.model.named_parameters()}
    graph, _ = passes.insert_lora_adapter_transform_pass(
        graph, {"rank": 2, "target_modules": ["query"]}
    )
    graph, _ = passes.insert_lora_adapter_transform_pass(
        graph, {"rank": 4, "target_modules": ["value"]}
    )
    graph, _ = passes.fuse_lora_weights_transform_pass(copy.deepcopy(graph))
    assert {n: p.requires_grad for n, p in graph.model.named_parameters()} == before


def test_the_model_object_stays_so_that_a_trainer_keeps_working() -> None:
    graph = bert_graph()
    model = graph.model
    passes.insert_lora_adapter_transform_pass(graph, DOCUMENTED)
    train_steps(graph)
    adapted = logits(model)
    passes.fuse_lora_weights_transform_pass(graph)
    assert graph.model is model
    torch.testing.assert_close(logits(model), adapted, rtol=1e-4, atol=1e-5)


def test_fusing_without_adapters_does_nothing() -> None:
    graph = mlp_graph()
    before = classes(graph)
    graph, info = passes.fuse_lora_weights_transform_pass(graph)
    assert info["fused"] == [] and classes(graph) == before


def test_a_layer_called_twice_has_one_adapter() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.same = self.fc

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.same(self.fc(x)) + self.fc(x)

    x = torch.randn(2, 4)
    graph = MaseGraph(Twice(), dummy_in={"x": x})
    graph, _ = passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    nn.init.normal_(graph.model.fc.lora_B.weight)
    adapted = graph.model(x)
    graph, _ = passes.fuse_lora_weights_transform_pass(graph)
    torch.testing.assert_close(graph.model(x), adapted)


def test_a_quantised_layer_takes_an_adapter_and_quantises_the_fused_weight() -> None:
    graph, _ = quantize_transform_pass(bert_graph(), QUANTIZE)
    before, kinds = logits(graph.model), classes(graph)
    graph, _ = passes.insert_lora_adapter_transform_pass(graph, DOCUMENTED)
    assert torch.equal(logits(graph.model), before)
    train_steps(graph)
    layer = graph.model.classifier
    weight = (layer.weight + layer.delta()).detach()
    graph, _ = passes.fuse_lora_weights_transform_pass(graph)
    fused = graph.model.classifier
    assert classes(graph) == kinds
    assert torch.equal(fused.quantized_parameters()[0], fused.quantizers["weight"](weight))


def test_adapters_survive_checkpoint_and_deepcopy(tmp_path: object) -> None:
    graph, _ = passes.insert_lora_adapter_transform_pass(bert_graph(), DOCUMENTED)
    train_steps(graph)
    wanted = logits(graph.model)
    graph.export(f"{tmp_path}/adapted")
    loaded = MaseGraph.from_checkpoint(f"{tmp_path}/adapted")
    assert torch.equal(logits(loaded.model), wanted)
    assert torch.equal(logits(copy.deepcopy(graph).model), wanted)
    loaded, _ = passes.fuse_lora_weights_transform_pass(loaded)
    assert all(p.requires_grad for p in loaded.model.parameters())


def test_metadata_holds_after_insertion_and_after_fusing() -> None:
    graph = annotated(bert_graph())
    graph, _ = passes.insert_lora_adapter_transform_pass(graph, DOCUMENTED)
    passes.verify_metadata_analysis_pass(graph)
    assert (
        graph.model.graph.find_nodes(op="call_module", target="classifier")[0].meta["mase"][
            "common"
        ]["mase_op"]
        == "linear"
    )
    graph, _ = passes.fuse_lora_weights_transform_pass(graph)
    passes.verify_metadata_analysis_pass(graph)


def test_a_traced_adapter_stays_one_node() -> None:
    layer = LoRALinear(nn.Linear(4, 3), rank=2)
    graph = MaseGraph(nn.Sequential(layer), dummy_in={"input": torch.randn(2, 4)})
    assert [n.target for n in graph.nodes if n.op == "call_module"] == ["0"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rank": 0}, r"insert_lora_adapter: rank must be at least 1, got 0"),
        ({"alpha": 0.0}, r"insert_lora_adapter: alpha must be above 0, got 0.0"),
        ({"dropout": 1.0}, r"insert_lora_adapter: dropout must be at least 0 and below 1, got 1.0"),
        ({"rnak": 4}, r"insert_lora_adapter: unknown key 'rnak'. Did you mean 'rank'\?"),
        (
            {"target_modules": ["fc9"]},
            r"insert_lora_adapter.target_modules: 'fc9' matches no module. Nearest: .*fc1",
        ),
        (
            {"modules_to_save": ["classifier"]},
            r"insert_lora_adapter.modules_to_save: 'classifier' matches no module",
        ),
        (
            {"target_modules": ["fc[1"]},
            r"target_modules: 'fc\[1' is neither a path nor a regular expression",
        ),
    ],
)
def test_bad_arguments_are_named(given: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        passes.insert_lora_adapter_transform_pass(mlp_graph(), given)


def test_a_graph_without_linear_layers_is_an_error() -> None:
    graph = MaseGraph(nn.ReLU(), dummy_in={"input": torch.randn(2)})
    with pytest.raises(PassError, match="the graph has no linear layer to adapt"):
        passes.insert_lora_adapter_transform_pass(graph)


class Tied(nn.Module):
    """A language model's head on its embedding's weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(16, 32), nn.Linear(32, 16, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.table(ids))


IDS = torch.tensor([[1, 2, 3]])


def train_a_little(graph):
    """Adapters that add something."""
    for module in graph.model.modules():
        if isinstance(module, LoRALinear):
            nn.init.normal_(module.lora_B.weight)


def test_fusing_into_a_tied_head_leaves_the_embedding_alone():
    graph = MaseGraph(Tied(), dummy_in={"ids": IDS})
    table = graph.model.table.weight.detach().clone()
    passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    train_a_little(graph)
    expected = graph.model(IDS)
    _, info = passes.fuse_lora_weights_transform_pass(graph)
    assert torch.equal(graph.model.table.weight, table)
    assert torch.allclose(graph.model(IDS), expected, atol=1e-5)  # one product instead of three
    assert info["untied"] == ["head"]
    assert all(p.requires_grad for p in graph.model.parameters())


def test_fusing_adapters_that_add_nothing_keeps_weights_shared():
    graph = MaseGraph(Tied(), dummy_in={"ids": IDS})
    passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    _, info = passes.fuse_lora_weights_transform_pass(graph)
    assert graph.model.head.weight is graph.model.table.weight
    assert info == {"fused": ["head"], "untied": []}


PACKED = ("mxint8", "mxint4", "mxfp4", "int8", "int8_dynamic")


@pytest.mark.parametrize("format", PACKED)
def test_adapters_train_beside_packed_layers_and_fuse_into_them(format):
    graph = mlp_graph()
    x = graph.dummy_in["x"]
    passes.pack_weights_transform_pass(graph, {"format": format})
    before = graph.model(x)
    passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    assert torch.equal(graph.model(x), before)
    train_a_little(graph)
    graph.model(x).square().sum().backward()
    adapters = [m for m in graph.model.modules() if isinstance(m, LoRALinear)]
    assert len(adapters) == 3
    assert all(m.lora_A.weight.grad.any() and m.lora_B.weight.grad.any() for m in adapters)
    wanted = [m.weight + m.delta() for m in adapters]
    passes.fuse_lora_weights_transform_pass(graph)
    for path, total in zip(("fc1", "fc2", "head"), wanted, strict=True):
        layer = getattr(graph.model, path)
        step = total.abs().amax() / (100 if "8" in format else 4)
        assert (layer.float_weight() - total).abs().amax() <= step


def test_packing_beside_adapters_is_inserting_adapters_beside_packed_layers():
    one, other = mlp_graph(), mlp_graph()
    x = one.dummy_in["x"]
    torch.manual_seed(1)
    passes.insert_lora_adapter_transform_pass(one, {"rank": 2})
    passes.pack_weights_transform_pass(one)
    passes.pack_weights_transform_pass(other)
    torch.manual_seed(1)
    passes.insert_lora_adapter_transform_pass(other, {"rank": 2})
    for graph in (one, other):
        torch.manual_seed(2)
        train_a_little(graph)
    assert torch.equal(one.model(x), other.model(x))
    assert one.model.state_dict().keys() == other.model.state_dict().keys()


def test_quantising_beside_adapters_is_inserting_adapters_beside_quantised_layers():
    one, other = mlp_graph(), mlp_graph()
    x = one.dummy_in["x"]
    torch.manual_seed(1)
    passes.insert_lora_adapter_transform_pass(one, {"rank": 2})
    passes.quantize_transform_pass(one, QUANTIZE)
    passes.quantize_transform_pass(other, QUANTIZE)
    torch.manual_seed(1)
    passes.insert_lora_adapter_transform_pass(other, {"rank": 2})
    for graph in (one, other):
        torch.manual_seed(2)
        train_a_little(graph)
    assert torch.equal(one.model(x), other.model(x))


def test_an_adapter_of_a_half_precision_layer_computes_in_its_type():
    graph = MaseGraph(mlp().bfloat16(), dummy_in={"x": torch.randn(5, 8).bfloat16()})
    passes.pack_weights_transform_pass(graph)
    passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    assert graph.model.fc1.lora_A.weight.dtype == torch.bfloat16
    assert graph.model(graph.dummy_in["x"]).dtype == torch.bfloat16


@pytest.mark.parametrize("config", [None, {"name": "mxint", "weight_width": 8}])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_fusing_into_a_pruned_layer_keeps_its_zeros_and_the_output(config, mode):
    torch.manual_seed(0)
    graph = MaseGraph(nn.Sequential(nn.Linear(32, 16)), dummy_in=torch.zeros(2, 32))
    if config is not None:
        quantize_transform_pass(graph, {"linear": {"config": config}})
    passes.prune_transform_pass(graph, {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
    passes.insert_lora_adapter_transform_pass(graph, {"rank": 4, "alpha": 4.0})
    getattr(graph.model, mode)()
    layer, x = graph.model.get_submodule("0"), torch.randn(8, 32)
    for part in (layer.lora_A, layer.lora_B):
        nn.init.normal_(part.weight, std=0.3)
    graph.model(x).sum().backward()
    pruned = layer.base_layer.weight_mask == 0
    before = graph.model(x)
    passes.fuse_lora_weights_transform_pass(graph)
    weight = graph.model.get_submodule("0").weight
    assert (weight[pruned] == 0).all() and (weight[~pruned] != 0).any()
    bound = 1e-5 if config is None else 0.1
    assert (graph.model(x) - before).abs().max() < bound
