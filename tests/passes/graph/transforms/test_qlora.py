"""Adapters that train on a packed base: QLoRA."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from passes.graphs import graph_of
from torch import nn

import chop.passes as passes
from chop import MaseGraph
from chop.kernels import QLinearPacked
from chop.kernels.layers import unpacked_weight
from chop.nn.modules.lora import LoRALinear

FORMATS = ("mxint4", "mxfp4", "int4")


def adapted(format: str) -> tuple[MaseGraph, torch.Tensor, torch.Tensor]:
    """A packed model with adapters, and a task: the sign of a sum."""
    torch.manual_seed(0)
    x = torch.randn(64, 48)
    y = (x[:, :8].sum(-1) > 0).long()
    model = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 2))
    graph = graph_of(model, {"input": x})
    passes.pack_weights_transform_pass(graph, {"format": format})
    passes.insert_lora_adapter_transform_pass(graph, {"rank": 4, "alpha": 8.0})
    return graph, x, y


def train(graph: MaseGraph, x: torch.Tensor, y: torch.Tensor, steps: int = 40) -> list[float]:
    """Losses of training what trains."""
    parameters = [p for p in graph.model.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.Adam(parameters, lr=1e-2), []
    for _ in range(steps):
        loss = F.cross_entropy(graph.model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("format", FORMATS)
def test_adapters_learn_and_the_packed_base_stays(format, tmp_path):
    graph, x, y = adapted(format)
    before = {n: b.clone() for n, b in graph.model.named_buffers()}
    names = {n for n, p in graph.model.named_parameters() if p.requires_grad}
    losses = train(graph, x, y)
    assert losses[-1] < 0.3 * losses[0]
    assert names and all("lora_" in name for name in names)
    after = dict(graph.model.named_buffers())
    assert all(torch.equal(after[n], b) and b.dtype == torch.uint8 for n, b in before.items())
    graph.export(tmp_path / "adapted")
    again = MaseGraph.from_checkpoint(tmp_path / "adapted")
    with torch.no_grad():
        assert torch.equal(again.model(x), graph.model(x))
    assert train(again, x, y, 1)[0] == pytest.approx(train(graph, x, y, 1)[0])


@pytest.mark.parametrize("format", FORMATS)
def test_merged_adapters_are_rounded_to_the_format_of_the_base(format, tmp_path):
    graph, x, y = adapted(format)
    train(graph, x, y)
    layers = [copy.deepcopy(graph.model.get_submodule(n)) for n in ("0", "2")]
    passes.fuse_lora_weights_transform_pass(graph)
    for name, layer in zip(("0", "2"), layers, strict=True):
        merged = graph.model.get_submodule(name)
        assert isinstance(layer, LoRALinear) and isinstance(merged, QLinearPacked)
        total = unpacked_weight(layer.base_layer) + layer.delta()
        expected = QLinearPacked.from_linear(_linear(total), format, merged.group_size)
        assert merged.format == format and torch.equal(merged.codes, expected.codes)
    with torch.no_grad():
        accuracy = (graph.model(x).argmax(-1) == y).float().mean()
    assert accuracy > 0.9
    graph.export(tmp_path / "merged")
    again = MaseGraph.from_checkpoint(tmp_path / "merged")
    with torch.no_grad():
        assert torch.equal(again.model(x), graph.model(x))


def _linear(weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight.detach()
    return layer


@pytest.mark.parametrize("format", [*FORMATS, "mxint8"])
def test_the_gradient_towards_the_input_is_that_of_the_unpacked_weight(format):
    torch.manual_seed(0)
    layer = QLinearPacked.from_linear(nn.Linear(70, 9), format)
    x, pull = torch.randn(3, 70, requires_grad=True), torch.randn(3, 9)
    layer(x).backward(pull)
    assert torch.allclose(x.grad, pull @ unpacked_weight(layer), atol=1e-5)
