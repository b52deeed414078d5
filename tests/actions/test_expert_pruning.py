"""Removal of experts: the model of transformers with the same experts, and a report."""

import copy
import functools

import pytest
import torch
import transformers
from covering import first_and_slow

from chop import MaseGraph
from chop.actions.expert_pruning import prune_experts
from chop.errors import ConfigError
from chop.export import to_huggingface
from chop.passes import quantize_transform_pass
from chop.passes.rewrite.expert_removal import expert_groups, routed_tokens

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32,
    "num_experts_per_tok": 2,
}
MODELS = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32, "head_dim": 8},
    "qwen2_moe": {
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
}
IDS = torch.arange(64).reshape(4, 16)
DATA = [{"input_ids": IDS}, {"input_ids": IDS.flip(1)}]


@functools.cache
def captured(family):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES, **MODELS[family])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return MaseGraph(model, dummy_in={"input_ids": IDS})


def reference(family, kept):
    """The model of transformers, built with fewer experts and the weights of those kept."""
    old = captured(family).original
    sizes = dict(MODELS[family])
    sizes[next(k for k in sizes if k in ("num_local_experts", "num_experts"))] = 3
    config = transformers.AutoConfig.for_model(family, **SIZES, **sizes)
    new = transformers.AutoModelForCausalLM.from_config(config).eval()
    state = old.state_dict()
    for number, own in enumerate(kept):
        prefix = f"model.layers.{number}.mlp"
        for name in ("experts.gate_up_proj", "experts.down_proj", "gate.weight"):
            state[f"{prefix}.{name}"] = state[f"{prefix}.{name}"][own]
    new.load_state_dict(state)
    return new


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("family", first_and_slow([*MODELS], 1))
def test_the_result_is_the_model_with_fewer_experts(family):
    graph = copy.deepcopy(captured(family))
    plain = logits(graph.model)
    record = prune_experts(graph, DATA, 3)
    kept = [[e for e in range(4) if e not in row["experts"]] for row in record["removed"]]
    expected = logits(reference(family, kept))
    assert torch.allclose(logits(graph.model), expected, atol=1e-6)
    assert not torch.allclose(expected, plain, atol=1e-3)
    assert torch.equal(logits(captured(family).original), plain)
    for row in record["removed"]:
        counts = record["tokens"][row["layer"]]
        assert sum(counts) == 2 * 64 * 2
        assert [counts[expert] for expert in row["experts"]] == [min(counts)]
        assert row["share"] == pytest.approx(min(counts) / sum(counts))
    assert record["experts"] == {"before": 4, "after": 3} and record["divergence"] > 0


def test_tokens_are_those_that_the_router_of_transformers_sends():
    graph = captured("mixtral")
    counts = routed_tokens(graph, expert_groups(graph), DATA[:1])
    with torch.no_grad():
        result = graph.original(IDS, output_router_logits=True)
    for number, scores in enumerate(result.router_logits):
        chosen = scores.topk(2, -1).indices.flatten().bincount(minlength=4)
        assert torch.equal(counts[f"model.layers.{number}.mlp.experts"], chosen)


def test_the_loss_is_that_of_the_next_token():
    graph = copy.deepcopy(captured("mixtral"))
    losses = []
    for batch in DATA:
        with torch.no_grad():
            scores = captured("mixtral").original(**batch).logits.log_softmax(-1)
        for row, tokens in zip(scores, batch["input_ids"].tolist(), strict=True):
            losses += [-float(row[i, token]) for i, token in enumerate(tokens[1:])]
    record = prune_experts(graph, DATA, 3)
    assert record["loss"]["before"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert record["loss"]["after"] != record["loss"]["before"]


def test_a_pruned_model_is_exported_with_its_config(tmp_path):
    graph = copy.deepcopy(captured("mixtral"))
    prune_experts(graph, DATA, 2)
    assert graph.model.config.num_local_experts == 2
    assert captured("mixtral").original.config.num_local_experts == 4
    to_huggingface(graph, tmp_path / "m")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    assert torch.allclose(logits(again), logits(graph.model), atol=1e-6)


@pytest.mark.parametrize("keep", [0, 1, 4, 9])
def test_numbers_that_leave_too_few_or_all_are_refused(keep):
    with pytest.raises(
        ConfigError, match=rf"prune.experts: {keep} experts to keep. Allowed: from 2"
    ):
        prune_experts(copy.deepcopy(captured("mixtral")), DATA, keep)


def test_models_without_float_experts_are_refused():
    plain = MaseGraph(torch.nn.Linear(4, 4), dummy_in={"input": torch.randn(2, 4)})
    with pytest.raises(ConfigError, match="the model has no experts as stacked floats"):
        prune_experts(plain, [], 1)
    graph = copy.deepcopy(captured("mixtral"))
    eight = {"name": "mxint", "weight_width": 8, "data_in_width": "NA"}
    quantize_transform_pass(graph, {"experts": {"config": eight}})
    with pytest.raises(ConfigError, match="neither quantised nor packed"):
        prune_experts(graph, DATA, 3)
