"""Captures with a cache that cannot work are refused, with the reason and the way to go on."""

from __future__ import annotations

import pytest
import torch
import transformers
from generating_models import made
from torch import nn
from transformers import DynamicCache

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ConfigError, GraphError, TraceError
from chop.ir.trace.size_rules import _RULES
from chop.kernels.cache import PackedCache
from chop.serve.batch_engine import BatchEngine
from chop.serve.speculation import check_speculation

BASE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
HEADS = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GROUPS = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
UNABLE = {
    "DeepseekV2": (
        {**HEADS, **EXPERTS, **GROUPS, "v_head_dim": 8},
        "graph is for one length alone",
    ),
    "FalconH1": (
        {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
        | {"num_hidden_layers": 1, "mamba_chunk_size": 8},
        "keeps a recurrent state",
    ),
}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**BASE, **UNABLE[name][0]})
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.mark.parametrize("name", UNABLE)
def test_a_model_whose_graph_could_not_generate_is_refused_at_capture(name, monkeypatch) -> None:
    words, model = UNABLE[name][1], model_of(name)
    monkeypatch.delitem(_RULES, torch.polar)  # then torch fixes the length of DeepseekV2
    with pytest.raises(TraceError, match=rf"cache: {name}ForCausalLM .*{words}.*without a cache"):
        MaseGraph(model, cache=True)
    assert MaseGraph(model).model is not None


def test_complex_rotations_leave_the_length_open() -> None:
    model, ids = model_of("DeepseekV2"), torch.randint(3, 90, (1, 6))
    settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **settings)
    assert torch.equal(MaseGraph(model, cache=True).generate(ids, **settings), expected)


SHORT = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3}
MIXED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONVOLUTIONS = {"Lfm2": {**SHORT, "conv_bias": True}, "Lfm2Moe": {**SHORT, **MIXED}}
"""Models with short convolutions, whose last inputs are in the cache."""


def convolving(name: str) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**BASE, **CONVOLUTIONS[name]})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():  # as drawn, the logits are nearly constant
        nn.init.normal_(parameter, std=0.15)
    return model


PROMPTS = {"one token": (1, 0), "shorter than the kernel": (2, 0), "padded": (7, 3)}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_short_convolutions_generate_as_transformers_does(name) -> None:
    model = convolving(name)
    graph = MaseGraph(model, cache=True)
    for length, padding in PROMPTS.values():
        ids = torch.randint(3, 90, (2, length))
        mask = torch.ones_like(ids)
        mask[0, :padding] = 0
        settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
        settings |= {"attention_mask": mask, "output_logits": True, "return_dict_in_generate": True}
        expected, ours = model.generate(ids, **settings), graph.generate(ids, **settings)
        assert torch.equal(ours.sequences, expected.sequences)
        torch.testing.assert_close(ours.logits, expected.logits)


def test_batches_and_drafts_refuse_states_of_convolutions() -> None:
    graph = MaseGraph(convolving("Lfm2"), cache=True)
    with pytest.raises(ConfigError, match=r"layer 0 of Lfm2ForCausalLM .* keys and values only"):
        BatchEngine(graph)
    with pytest.raises(ConfigError, match=r"speculate: layer 0 of Lfm2.* of a convolution"):
        check_speculation(graph)
    with pytest.raises(ConfigError, match=r"layer 0: LinearAttentionLayer keeps no keys"):
        PackedCache(graph.model.config, "mxint8")


KEYS = torch.zeros(1, 2, 3, 8)
CACHES = {
    "a cache": {"past_key_values": DynamicCache()},
    "tuples": {"past_key_values": ((KEYS, KEYS), (KEYS, KEYS))},
    "use_cache": {"use_cache": True},
}


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("cache", [False, True])
def test_a_cache_as_example_input_names_the_option(name, cache) -> None:
    inputs = {"input_ids": torch.ones(1, 4, dtype=torch.long), **CACHES[name]}
    with pytest.raises(TraceError, match=r"a cache is no example input.*cache=True"):
        MaseGraph(made("Llama"), dummy_in=inputs, cache=cache)


def test_a_cache_by_name_and_values_of_no_effect() -> None:
    with pytest.raises(TraceError, match=r"'past_key_values': a cache is no example input"):
        MaseGraph(made("Llama"), ["input_ids", "past_key_values"])
    ids = torch.ones(1, 4, dtype=torch.long)
    inputs = {"input_ids": ids, "past_key_values": None, "use_cache": False}
    assert MaseGraph(made("Llama"), dummy_in=inputs).model(input_ids=ids) is not None


def test_gradient_checkpointing_of_a_graph_is_refused_with_other_ways() -> None:
    graph = MaseGraph(made("Llama"))
    with pytest.raises(GraphError, match=r"has no blocks to compute again.*gradient_accumulation"):
        graph.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={})


FIXED = {"linear": {"config": {"name": "integer", "weight_width": 8, "data_in_width": 8}}}
PASSES = {
    "gptq_transform_pass": {},
    "clip_transform_pass": {},
    "correct_bias_transform_pass": {},
    "learned_rounding_transform_pass": {},
    "smooth_transform_pass": {"alpha": 0.5},
    "calibrate_analysis_pass": {"observer": "min_max", **FIXED},
}
EMPTY = {
    "no rows": (torch.zeros(0, 16), r"batch 1 is empty: it has a tensor of shape \[0, 16\]"),
    "None": (None, "batch 1 is None"),
}


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("kind", EMPTY)
def test_an_empty_calibration_batch_is_named(name, kind) -> None:
    batch, words = EMPTY[kind]
    graph = MaseGraph(nn.Sequential(nn.Linear(16, 8)), dummy_in=torch.zeros(2, 16))
    if name.startswith(("gptq", "clip", "correct", "learned")):
        passes.quantize_transform_pass(graph, {"linear": {"config": {"name": "mxint"}}})
    with pytest.raises(ConfigError, match=words):
        getattr(passes, name)(graph, {"data": [torch.ones(2, 16), batch], **PASSES[name]})
