"""Rows that count by what their errors do to the loss, and layers that are kept on the way."""

import copy
import logging

import pytest
import torch
from torch import nn

import chop.passes.graph.transforms.gptq as gptq
from chop import MaseGraph
from chop.passes.graph.analysis.sensitivity import sensitivity_analysis_pass
from chop.passes.graph.transforms.gptq import gptq_transform_pass
from chop.passes.graph.transforms.learned_rounding import learned_rounding_transform_pass
from chop.passes.graph.transforms.quantize import quantize_transform_pass
from chop.passes.ptq.observe.curvature import EQUAL_SHARE, row_importances

FOUR_BITS = {"name": "scale_integer", "weight_width": 4, "weight_granularity": "channel",
             "data_in_width": "NA", "bias_width": "NA"}  # fmt: skip


class FirstToken(nn.Module):
    """A classifier that reads the first token alone, as encoders do."""

    def __init__(self, classes=2):
        super().__init__()
        self.deep, self.head = nn.Linear(24, 24), nn.Linear(24, classes)

    def forward(self, x):
        return {"logits": self.head(torch.tanh(self.deep(x))[:, 0])}


def quantized(model, x):
    graph = MaseGraph(model, dummy_in=x)
    quantize_transform_pass(graph, {"linear": {"config": FOUR_BITS}})
    return graph


def layers_of(graph):
    nodes = (n for n in graph.fx_graph.nodes if n.op == "call_module")
    return {n: graph.model.get_submodule(n.target) for n in nodes if hasattr(
        graph.model.get_submodule(n.target), "quantizers")}  # fmt: skip


def test_rows_count_by_the_fisher_information_of_their_outputs():
    model, x = FirstToken(), torch.randn(5, 3, 24)
    graph = quantized(model, x)
    layers = layers_of(graph)
    found = row_importances(graph, layers, [x[:2], x[2:]], "here")
    deep = next(n for n in layers if n.target == "deep")
    given = torch.cat(found[deep]).reshape(5, 3)
    hidden = model.deep(x)
    p = model.head(torch.tanh(hidden[:, 0])).softmax(-1)
    # of two classes: d log p(label) / d hidden is ±p(other) (w0 - w1)(1 - tanh²), squared and meant
    slope = (model.head.weight[0] - model.head.weight[1]) * (1 - torch.tanh(hidden[:, 0]) ** 2)
    right = torch.zeros(5, 3)
    right[:, 0] = p.prod(1) * slope.square().mean(1)
    right = (1 - EQUAL_SHARE) * right / right.mean() + EQUAL_SHARE
    torch.testing.assert_close(given, right.detach(), rtol=1e-4, atol=1e-6)
    assert all(p.grad is None and p.requires_grad for p in graph.model.parameters())


def test_the_loss_falls_where_few_rows_matter():
    torch.manual_seed(3)
    model = FirstToken(classes=4)
    draw = torch.Generator().manual_seed(1)

    def tokens(rows):  # the first token is of another kind than the rest, and the weaker one
        mix = torch.randn(2, 24, 24, generator=torch.Generator().manual_seed(7))
        x = torch.randn(rows, 12, 24, generator=draw)
        return torch.cat([0.3 * (x[:, :1] @ mix[0]), x[:, 1:] @ mix[1]], 1)

    held, data = tokens(512), [tokens(32) for _ in range(4)]
    error = {}
    for rows in ("equal", "by_loss"):
        graph = quantized(copy.deepcopy(model), tokens(2))
        gptq_transform_pass(graph, {"data": data, "rows": rows})
        with torch.no_grad():
            error[rows] = float(
                (graph.model(held)["logits"] - model(held)["logits"]).square().sum()
            )
    assert error["by_loss"] < 0.85 * error["equal"]


class Signs(nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = nn.Linear(8, 8)

    def forward(self, x):
        return self.deep(x) > 0


def test_without_a_gradient_all_rows_count_the_same(caplog):
    x = torch.randn(6, 8)
    graph = quantized(Signs(), x)
    with caplog.at_level(logging.INFO, "chop"):
        assert row_importances(graph, layers_of(graph), [x], "here") == {}
        gptq_transform_pass(graph, {"data": [x]})
    assert "all rows count the same" in caplog.text


def chain():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4)
    )


def rounded(name, keep, data):
    """The weights that a pass gives, and what it tells."""
    graph = quantized(chain(), data[0])
    if name == "gptq":
        _, info = gptq_transform_pass(graph, {"data": data, "keep": keep})
    else:
        given = {"data": data, "keep": keep, "steps": 8, "start": "gptq"}
        _, info = learned_rounding_transform_pass(graph, given)
    return {k: v.clone() for k, v in graph.model.state_dict().items()}, info


@pytest.mark.parametrize("name", ["gptq", "learned_rounding"])
def test_an_interrupted_run_goes_on_behind_the_layers_it_kept(name, tmp_path, monkeypatch):
    draw = torch.Generator().manual_seed(2)
    data = [torch.randn(32, 16, generator=draw) for _ in range(2)]
    whole, told = rounded(name, None, data)
    first, _ = rounded(name, tmp_path, data)
    assert all(torch.equal(first[k], whole[k]) for k in whole)
    (folder,) = tmp_path.glob(f"{name}-*")
    files = sorted(folder.iterdir())
    assert len(files) == 3
    files[-1].unlink()  # as if it had been stopped in its last layer
    files[1].write_bytes(files[1].read_bytes()[:40])  # and the disk had been full in the second
    calls = []
    plain = gptq._round_layer
    monkeypatch.setattr(gptq, "_round_layer", lambda *a: calls.append(a[0].name) or plain(*a))
    again, told_again = rounded(name, tmp_path, data)
    assert all(torch.equal(again[k], whole[k]) for k in whole)
    assert told_again == told
    assert len(calls) == (2 if name == "gptq" else 0)
    other, _ = rounded(name, tmp_path, [data[0] + 1, data[1]])  # of other data nothing is taken
    assert any(not torch.equal(other[k], whole[k]) for k in whole)
    assert len(list(tmp_path.glob(f"{name}-*"))) == 2


class Grouped(nn.Module):
    """A convolution with groups, or the same one with zeros outside of its groups."""

    def __init__(self, groups, is_dense):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(4, 8, 3, groups=groups, bias=False)
        self.head = nn.Linear(8, 3)
        if is_dense:
            whole = torch.zeros(8, 4, 3, 3)
            for row, kernel in enumerate(self.conv.weight.detach()):
                start = row // (8 // groups) * (4 // groups)
                whole[row, start : start + 4 // groups] = kernel
            self.conv = nn.Conv2d(4, 8, 3, bias=False)
            self.conv.weight = nn.Parameter(whole)

    def forward(self, x):
        return {"logits": self.head(torch.tanh(self.conv(x)).mean((2, 3)))}


ROUNDED = {**FOUR_BITS, "data_in_width": 4, "data_in_granularity": "tensor"}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_loss_of_a_grouped_convolution_is_that_of_the_same_dense_one(groups):
    x = torch.randn(5, 4, 6, 6)
    tables = []
    for is_dense in (False, True):
        graph = MaseGraph(Grouped(groups, is_dense), dummy_in={"x": x})
        args = {"data": [x], "formats": {"weight": FOUR_BITS, "both": ROUNDED}, "layers": ("conv",)}
        tables.append(sensitivity_analysis_pass(graph, args)[1]["table"])
    for own, dense in zip(*tables, strict=True):
        assert own["format"] == dense["format"] and own["loss"] > 0
        torch.testing.assert_close(own["moves"], dense["moves"], rtol=1e-4, atol=1e-7)
