"""Layers that a server joins share a format, and budgets in bytes and in perplexity."""

import copy
import functools
import itertools
import math

import numpy as np
import pytest
import torch
import transformers

import chop.passes as passes
from chop import MaseGraph
from chop.actions.fused_layers import fused_groups, one_row_per_group
from chop.actions.post_training import FormatChoices, rules_for_bits, rules_for_loss, weight_formats
from chop.cli.allocation_budget import parsed_budget
from chop.errors import ConfigError
from chop.passes.graph.analysis.sensitivity import layers_with_weights
from chop.passes.rewrite.split_experts import split_experts

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
IDS = torch.arange(64).reshape(4, 16)
FORMATS = weight_formats("mxint", (2, 4, 8))


@functools.cache
def captured(family):
    torch.manual_seed(0)
    more = {"num_local_experts": 2} if family == "mixtral" else {}
    config = transformers.AutoConfig.for_model(family, **SIZES, **more)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    graph = MaseGraph(model, dummy_in={"input_ids": IDS})
    split_experts(graph)
    return graph


@functools.cache
def choices(family, server):
    data = [{"input_ids": torch.randperm(64).reshape(4, 16)} for _ in range(2)]
    return FormatChoices.measured(captured(family), data, FORMATS, server)


def names_by_group(family, server):
    nodes = layers_with_weights(captured(family))
    groups = {}
    for name, first in fused_groups(nodes, server).items():
        path = next(str(node.target) for node in nodes if node.name == name)
        groups.setdefault(first, []).append(path.removeprefix("model.layers.0."))
    return sorted(groups.values())


def test_a_server_joins_q_k_v_and_gate_and_up():
    groups = names_by_group("llama", "vllm")
    assert ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] in groups
    assert ["mlp.gate_proj", "mlp.up_proj"] in groups
    assert ["mlp.down_proj"] in groups and ["lm_head"] in groups and len(groups) == 6
    assert all(len(group) == 1 for group in names_by_group("llama", None))


def test_all_experts_of_a_layer_are_one_group():
    experts = [g for g in names_by_group("mixtral", "vllm") if "experts" in g[0]]
    assert [len(group) for group in experts] == [4]


def test_a_group_has_the_moves_and_the_elements_of_its_layers():
    table = [
        {"node": "a", "format": "x", "elements": 1, "bits": 4.0, "moves": [1.0, -2.0], "loss": 5},
        {"node": "b", "format": "x", "elements": 3, "bits": 8.0, "moves": [1.0, 1.0], "loss": 2},
        {"node": "c", "format": "x", "elements": 2, "bits": 4.0, "moves": [0.5, 0.0], "loss": 0.25},
    ]
    rows = one_row_per_group(table, {"a": "a", "b": "a", "c": "c"})
    assert rows[0] == {
        "node": "a",
        "format": "x",
        "elements": 4,
        "bits": 7.0,
        "moves": [2.0, -1.0],
        "loss": 5.0,
    }
    assert rows[1] == table[2] and len(rows) == 2


def formats_of(family, server, bits):
    rules, record = choices(family, server).within_bits(bits)
    nodes = {node.name: str(node.target) for node in captured(family).fx_graph.nodes}
    return {nodes[n]: form for n, form in record["assignment"].items()}, record, rules


@pytest.mark.parametrize("bits", [3.0, 4.5, 6.0])
def test_joined_layers_share_a_format_within_the_budget(bits):
    chosen, record, _ = formats_of("llama", "vllm", bits)
    attention = "model.layers.0.self_attn"
    assert len({chosen[f"{attention}.{name}_proj"] for name in "qkv"}) == 1
    assert len({chosen[f"model.layers.0.mlp.{name}_proj"] for name in ("gate", "up")}) == 1
    assert record["bits"] <= bits + 1e-9
    alone = choices("llama", None).within_bits(bits)[1]
    assert alone["loss"] <= record["loss"] * (1 + 1e-6)


def test_the_joint_choice_is_the_best_of_all_that_share_formats():
    """Enumerate every assignment of formats to groups; moves of a group are summed."""
    own = choices("llama", "vllm")
    rows = one_row_per_group(own.budget.merged(own.table), own.groups)
    groups = {}
    for row in rows:
        groups.setdefault(row["node"], []).append(row)
    limit, total = own.budget.chosen_bits(4.5), sum(g[0]["elements"] for g in groups.values())
    best = math.inf
    for each in itertools.product(*groups.values()):
        bits = sum(row["bits"] * row["elements"] for row in each) / total
        if bits <= limit:
            best = min(best, sum(float(np.square(row["moves"]).sum()) for row in each))
    rules, record = own.within_bits(4.5)
    separate = sum(
        float(np.square(row["moves"]).sum())
        for row in rows
        if record["assignment"][row["node"]] == row["format"]
    )
    assert record["loss"] <= best * 1.2 and separate <= best * 1.2
    graph = copy.deepcopy(captured("llama"))
    passes.quantize_transform_pass(graph, rules)


@pytest.mark.parametrize("server", [None, "vllm"])
def test_a_loss_is_met_with_the_fewest_bits(server):
    own = choices("llama", server)
    limit = own.within_bits(4.5)[1]["loss"] * 1.0001
    _, record = own.within_loss(limit)
    assert record["loss"] <= limit and record["bits"] <= 4.5 + 1e-6
    fewer = own.within_bits(record["bits"] - 0.2)[1]
    assert fewer["loss"] > limit
    with pytest.raises(ConfigError, match="more perplexity, and the widest formats are predicted"):
        own.within_loss(1e-9)


def test_functions_measure_and_choose():
    graph, data = captured("llama"), [{"input_ids": IDS}]
    rules, record = rules_for_bits(graph, data, 4.5, FORMATS, fusable="vllm")
    assert record["bits"] <= 4.5 and rules["by"] == "name"
    assert rules_for_loss(graph, data, 10.0, FORMATS)[1]["loss"] <= 10.0


@pytest.mark.parametrize(
    "text, bits",
    [("1MB", 8.0), ("500 kB", 4.0), ("1MiB", 8.388608), ("0.25MB", 2.0)],
)
def test_sizes_are_bits_per_weight(text, bits):
    assert parsed_budget(text, 1_000_000).bits == pytest.approx(bits)


def test_shares_are_a_loss():
    assert parsed_budget("2.5 %", 1).loss == pytest.approx(math.log(1.025))
    assert parsed_budget(None, 1) is None


@pytest.mark.parametrize("text", ["", "4", "0MB", "0%", "1 pint", "-1%", "1%%"])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(
        ConfigError, match=r"is neither a size nor a share\. Allowed: a size of all"
    ):
        parsed_budget(text, 1)


def test_a_decode_time_is_the_size_that_is_read_in_it():
    assert parsed_budget("10 ms", 1_000_000, "0.05GB/s").bits == pytest.approx(4.0)


@pytest.mark.parametrize(
    "text, bandwidth, words",
    [
        ("10ms", None, r"quantize\.bandwidth: none, with the budget '10ms'\. A time per token"),
        ("10MB", "1GB/s", r"quantize\.bandwidth: 1GB/s, with the budget '10MB'"),
        ("10ms", "1GB", r"'1GB' is no bandwidth\. Allowed: a size per second, as 50GB/s"),
        ("10ms", "fast", "'fast' is no bandwidth"),
        ("10ms", "0GB/s", "'0GB/s' is no bandwidth"),
        ("0ms", "1GB/s", "is neither a size nor a share"),
    ],
)
def test_times_without_a_bandwidth_are_refused(text, bandwidth, words):
    with pytest.raises(ConfigError, match=words):
        parsed_budget(text, 1, bandwidth)
