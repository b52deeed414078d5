"""The experts of a mixture in number formats: the values of the format, packed and stored."""

import copy
import functools

import pytest
import torch
from zoo import case

import chop.passes as passes
from chop import MaseGraph
from chop.ir.expert_layer import Experts
from chop.kernels import QExpertsPacked
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import MXInt

FOUR_BITS = {"name": "mxint", "weight_width": 4, "data_in_width": "NA"}


@functools.cache
def captured() -> MaseGraph:
    given = case("Mixtral")
    return MaseGraph(copy.deepcopy(given.model), dummy_in=given.inputs)


def graph_of_mixtral() -> tuple[MaseGraph, dict]:
    return copy.deepcopy(captured()), case("Mixtral").inputs


def quantized(config: dict) -> tuple[MaseGraph, dict, dict]:
    graph, inputs = graph_of_mixtral()
    graph, info = passes.quantize_transform_pass(graph, {"experts": {"config": config}})
    return graph, inputs, info


def logits(model: torch.nn.Module, inputs: dict) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs).logits


def test_experts_compute_with_weights_in_their_format():
    graph, inputs, info = quantized(FOUR_BITS)
    assert len(info["quantized"]) == 4 and set(info["quantized"].values()) == {"ExpertsMXInt"}
    rounded, form = copy.deepcopy(case("Mixtral").model), MXInt(4)
    for parameter in rounded.parameters():
        if parameter.dim() == 3:
            parameter.data = form(parameter.data)
    before = logits(case("Mixtral").model, inputs)
    after = logits(graph.model, inputs)
    assert torch.allclose(after, logits(rounded, inputs), atol=1e-6)
    assert not torch.allclose(after, before, atol=1e-3)


def test_without_a_rule_for_them_experts_compute_as_before():
    graph, inputs = graph_of_mixtral()
    before = logits(graph.model, inputs)
    rules = {"lm_head": {"config": FOUR_BITS | {"bias_width": "NA"}}, "by": "name"}
    graph, _ = passes.quantize_transform_pass(graph, rules)
    experts = [m for m in graph.model.modules() if isinstance(m, Experts)]
    assert len(experts) == 4 and not any(isinstance(m, QuantizedModule) for m in experts)
    graph.model.lm_head = copy.deepcopy(case("Mixtral").model.lm_head)
    assert torch.equal(logits(graph.model, inputs), before)


def test_inputs_of_experts_have_a_format_too():
    eight = {"name": "integer", "weight_width": 8, "weight_frac_width": 6}
    eight |= {"data_in_width": 8, "data_in_frac_width": 4}
    weights_only, inputs, _ = quantized(eight | {"data_in_width": "NA"})
    both, _, _ = quantized(eight)
    layer = next(m for m in both.model.modules() if isinstance(m, Experts))
    x, ends = torch.randn(6, layer.in_features), torch.tensor([2, 2, 5, 6], dtype=torch.int32)
    rounded = layer.quantizers["data_in"](x)
    weight = layer.quantizers["weight"](layer.weight).view(4, layer.out_features, -1)
    rows = torch.tensor([0, 0, 2, 2, 2, 3])
    expected = torch.einsum("ri,roi->ro", rounded, weight[rows])
    assert torch.allclose(layer(x, ends), expected, atol=1e-5)
    assert not torch.equal(logits(both.model, inputs), logits(weights_only.model, inputs))


GROUPS = {"weight_granularity": "group", "weight_group_size": 16}


@pytest.mark.parametrize(
    "config, form",
    [
        (FOUR_BITS, "mxint4"),
        ({"name": "mxint", "weight_width": 8, "data_in_width": 8}, "mxint8"),
        (FOUR_BITS | GROUPS | {"name": "scale_integer"}, "int4"),
    ],
    ids=["weights", "weights and inputs", "groups of integers"],
)
def test_quantised_experts_pack_with_their_values_and_load_again(config, form, tmp_path):
    graph, inputs, _ = quantized(config)
    experts = [path for path, m in graph.model.named_modules() if isinstance(m, Experts)]
    others = {"format": "mxint8", "skip": experts}
    kept, _ = passes.pack_weights_transform_pass(copy.deepcopy(graph), others)
    graph, _ = passes.pack_weights_transform_pass(graph, {"format": "mxint8"})
    packed = [m for m in graph.model.modules() if isinstance(m, QExpertsPacked)]
    assert [m.format for m in packed] == [form] * 4
    after = logits(graph.model, inputs)
    assert torch.allclose(after, logits(kept.model, inputs), atol=1e-5)
    graph.export(tmp_path / "packed")
    again = MaseGraph.from_checkpoint(tmp_path / "packed")
    assert torch.equal(logits(again.model, inputs), after)


def test_quantised_experts_are_saved_and_train(tmp_path):
    graph, inputs, _ = quantized(FOUR_BITS)
    graph.export(tmp_path / "quantised")
    again = MaseGraph.from_checkpoint(tmp_path / "quantised")
    assert torch.equal(logits(again.model, inputs), logits(graph.model, inputs))
    layer = next(m for m in graph.model.modules() if isinstance(m, Experts))
    graph.model(**inputs).logits.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.abs().sum() > 0


def test_experts_compile_in_float32_with_their_gradients():
    layer = Experts(torch.nn.Parameter(torch.randn(3 * 4, 8)), experts=3)
    x, ends = torch.randn(5, 8, requires_grad=True), torch.tensor([2, 2, 5], dtype=torch.int32)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    found = []
    for each in (layer, compiled):
        y = each(x, ends)
        found.append((y, *torch.autograd.grad(y.square().sum(), (x, layer.weight))))
    for mine, theirs in zip(*found, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
