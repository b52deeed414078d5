"""The experts of a mixture as a layer each: the same values, and every expert is calibrated."""

import copy
import functools

import pytest
import torch
import transformers
from covering import first_and_slow

import chop.passes as passes
from chop import MaseGraph
from chop.actions.post_training import quantize_with_data, rules_for_bits
from chop.ir.expert_layer import Experts
from chop.kernels.layers import QLinearPacked
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.ptq.observe.layerwise_run import LayerwiseRun
from chop.passes.rewrite.split_experts import expert_calls, split_experts

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
}
MODELS = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16},
}
NAMES = first_and_slow([*MODELS], 1)
EXPERTS = "model.layers.0.mlp.experts"
IDS = torch.arange(96).reshape(4, 24)


def model_of(family, **more):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **(SIZES | MODELS[family] | more))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@functools.cache
def captured(family="mixtral", experts=4):
    more = {"num_local_experts": experts} if family == "mixtral" else {}
    return MaseGraph(model_of(family, **more), dummy_in={"input_ids": IDS[:2, :8]})


def graph_of(*which):
    return copy.deepcopy(captured(*which))


def logits(graph, ids=IDS):
    with torch.no_grad():
        return graph.model(ids).logits


def weights_in(width):
    return {
        "config": {
            "name": "mxint",
            "weight_width": width,
            "data_in_width": "NA",
            "bias_width": "NA",
        }
    }


def batches(count=2):
    draw = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, 96, (4, 24), generator=draw)} for _ in range(count)]


@pytest.mark.parametrize("family", NAMES)
def test_the_same_products_on_the_same_memory(family, tmp_path):
    graph = graph_of(family)
    expected = logits(graph)
    stacked = {n: p.data_ptr() for n, p in graph.model.named_parameters() if p.dim() == 3}
    paths = split_experts(graph)
    assert {name: len(own) for name, own in paths.items()} == dict.fromkeys(stacked, 4)
    assert torch.equal(logits(graph), expected)
    for name, own in paths.items():
        assert graph.model.get_submodule(own[0]).weight.data_ptr() == stacked[name]
    graph.export(tmp_path / "split")
    assert torch.equal(logits(MaseGraph.from_checkpoint(tmp_path / "split")), expected)


def test_experts_that_are_one_layer_are_split_too():
    graph = graph_of()
    expected = logits(graph)
    passes.quantize_transform_pass(graph, {"by": "name", "lm_head": weights_in(8)})
    assert sum(isinstance(m, Experts) for m in graph.model.modules()) == 2
    assert len(split_experts(graph)) == 2
    assert not any(isinstance(m, Experts) for m in graph.model.modules())
    assert (logits(graph) - expected).abs().max() < 0.1


@pytest.mark.parametrize("family", NAMES)
def test_a_rule_names_one_expert(family):
    graph, split = graph_of(family), graph_of(family)
    rules = {"by": ["name", "regex_name"], f"{EXPERTS}.down_proj.3": weights_in(4)}
    passes.quantize_transform_pass(graph, rules)
    layers = [p for p, m in graph.model.named_modules() if isinstance(m, QuantizedModule)]
    assert layers == [f"{EXPERTS}.down_proj.3"]
    split_experts(split)
    last = split.model.get_submodule(layers[0])
    last.weight = torch.nn.Parameter(graph.model.get_submodule(layers[0]).quantized_parameters()[0])
    assert torch.equal(logits(graph), logits(split))


def test_an_expression_for_all_experts_keeps_them_in_one_layer():
    graph = graph_of()
    rules = {"by": "regex_name", rf"{EXPERTS}\..*": weights_in(4)}
    _, info = passes.quantize_transform_pass(graph, rules)
    assert set(info["quantized"].values()) == {"ExpertsMXInt"}


def test_a_rule_for_experts_by_type_matches_each_expert():
    graph = graph_of()
    split_experts(graph)
    _, info = passes.quantize_transform_pass(graph, {"experts": weights_in(4)})
    assert len(info["quantized"]) == 8 and set(info["quantized"].values()) == {"LinearMXInt"}


@pytest.mark.parametrize("family", NAMES)
def test_rows_of_all_are_what_the_expert_makes_of_every_token(family):
    """The reference computes the expert in float on all rows, without the graph's own nodes."""
    graph = graph_of(family)
    split_experts(graph)
    calls = expert_calls(graph)
    with torch.no_grad(), LayerwiseRun(graph, batches(1), "test") as run:
        for node, call in calls.items():
            run.advance(node)
            rows = run.rows_of_all(node, 0)
            assert rows.shape[0] == 4 * 24 * 2  # every token, for each of its two experts
            if call.source is None:
                every = rows
                continue
            weight = graph.model.get_submodule(f"{EXPERTS}.gate_up_proj.{call.expert}").weight
            gate, up = (every @ weight.mT).chunk(2, -1)
            torch.testing.assert_close(rows, torch.nn.functional.silu(gate) * up)
    assert {call.expert for call in calls.values()} == {0, 1, 2, 3}


RULES = {"linear": weights_in(3), "experts": weights_in(3)}
FAST = {"gptq": {"rounds": 0, "order": "importance"}}


@pytest.mark.parametrize("family", NAMES)
def test_gptq_calibrates_every_expert(family):
    errors = {}
    for method in ("nearest", "gptq"):
        graph = graph_of(family)
        expected = logits(graph)
        info = quantize_with_data(graph, RULES, batches(), method, FAST)
        errors[method] = float((logits(graph) - expected).square().mean())
    assert errors["gptq"] < 0.9 * errors["nearest"]
    records = [r for r in info["layers"] if "experts" in r["module"]]
    assert len(records) == 8 and {r["kept"] for r in records} == {"method"}
    first = [r["tokens"] for r in records if "gate_up" in r["module"]]
    assert sum(first) == 2 * 4 * 24 * 2


def test_an_expert_without_tokens_is_calibrated_by_those_of_others(caplog):
    graph, few = graph_of("mixtral", 12), [{"input_ids": IDS[:1, :3]}]
    info = quantize_with_data(graph, {"experts": weights_in(3)}, few, "gptq", FAST)
    rare = [r for r in info["layers"] if r["tokens"] == 0]
    assert rare and all(r["kept"] == "method" and r["rounded"] > r["plain"] for r in rare)
    assert "24 of 24 layers of experts saw fewer than 64 tokens" in caplog.text
    assert "Give more calibration rows." in caplog.text
    graph = graph_of("mixtral", 12)
    own = {"gptq": FAST["gptq"] | {"experts": "routed"}}
    info = quantize_with_data(graph, {"experts": weights_in(3)}, few, "gptq", own)
    assert {r["kept"] for r in info["layers"] if r["tokens"] == 0} == {"nearest"}


def test_budgets_choose_a_width_for_each_expert():
    graph = graph_of()
    split_experts(graph)
    rules, record = rules_for_bits(graph, batches(), 8.0, "mxint")
    chosen = {name: form for name, form in record["assignment"].items() if "experts" in name}
    assert len(chosen) == 8 and record["bits"] <= 8.0
    assert len(set(chosen.values())) > 1
    passes.quantize_transform_pass(graph, rules)
    expected = logits(graph)
    passes.pack_weights_transform_pass(graph, {"format": "mxint8", "embeddings": False})
    packed = [p for p, m in graph.model.named_modules() if isinstance(m, QLinearPacked)]
    assert [p for p in packed if "experts" in p]
    assert (logits(graph) - expected).abs().max() < 0.05 * expected.abs().max()


def test_stacked_experts_that_are_quantised_are_named_by_gptq(caplog):
    graph = graph_of()
    passes.quantize_transform_pass(graph, {"linear": weights_in(4), "experts": weights_in(4)})
    passes.gptq_transform_pass(graph, {"data": batches(1), "rounds": 0})
    assert "has all experts in one layer and keeps plain rounding" in caplog.text
