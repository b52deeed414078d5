"""Structured pruning of language models: heads that share keys and values, and gated MLPs."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import chop.passes as passes
from chop import MaseGraph
from chop.errors import ConfigError, PassError
from chop.export import to_huggingface
from chop.nn.modules import Masked

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
FAMILIES = {"llama": {}, "qwen3": {}, "phi3": {"hidden_size": 64}}  # phi3: fused qkv and gate-up
IDS = torch.arange(3, 23).reshape(2, 10)
HEADS, KEYS, WIDTH = 8, 2, 8


@functools.cache
def captured(family: str, attention: str = "sdpa") -> MaseGraph:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **(SIZES | FAMILIES[family]))
    config._attn_implementation = attention
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms that are not all ones
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return MaseGraph(model, cache=True)


def graph_of(family: str, attention: str = "sdpa") -> MaseGraph:
    return copy.deepcopy(captured(family, attention))


def logits(graph: MaseGraph) -> Tensor:
    with torch.no_grad():
        return graph.model(input_ids=IDS)["logits"]


def prune(graph: MaseGraph, granularity: str, **fields: Any) -> list[dict[str, Any]]:
    extra = {key: fields.pop(key) for key in ("batches",) if key in fields}
    given = {"weight": {"sparsity": 0.5, "granularity": granularity, **fields}, **extra}
    return passes.prune_transform_pass(graph, given)[1]["structure"]["removed"]


def attention(graph: MaseGraph, layer: int) -> nn.Module:
    return graph.model.get_submodule(f"model.layers.{layer}.self_attn")


def mlp(graph: MaseGraph, layer: int) -> nn.Module:
    return graph.model.get_submodule(f"model.layers.{layer}.mlp")


def query_weight(layer: Any) -> Tensor:
    fused = getattr(layer, "qkv_proj", None)
    return layer.q_proj.weight if fused is None else fused.weight


def value_rows(layer: Any) -> Tensor:
    fused = getattr(layer, "qkv_proj", None)
    return layer.v_proj.weight if fused is None else fused.weight[-KEYS * WIDTH :]


@torch.no_grad()
def silence(graph: MaseGraph, dead: list[list[int]]) -> None:
    """Make query heads count for nothing: what they make is small, and nothing takes it."""
    for number, heads in enumerate(dead):
        layer: Any = attention(graph, number)
        for head in heads:
            columns = slice(head * WIDTH, (head + 1) * WIDTH)
            query_weight(layer)[columns] *= 1e-3
            layer.o_proj.weight[:, columns] = 0.0


SLOW = pytest.mark.slow
CASES = [
    ("qwen3", "sdpa"),
    pytest.param("phi3", "sdpa", marks=SLOW),
    pytest.param("llama", "sdpa", marks=SLOW),
    pytest.param("llama", "eager", marks=SLOW),
]


@pytest.mark.parametrize(("family", "kernel"), CASES)
def test_dead_query_heads_go_from_each_that_share_and_leave_the_output(
    family: str, kernel: str
) -> None:
    graph = graph_of(family, kernel)
    silence(graph, [[0, 3, 5, 6], [1, 2, 4, 7]])  # two of each four, in other places
    before = logits(graph)
    removed = prune(graph, "query_head")
    assert [(r["kind"], r["before"], r["after"]) for r in removed] == [("query heads", 8, 4)] * 2
    torch.testing.assert_close(logits(graph), before, rtol=1e-4, atol=1e-5)
    layer: Any = attention(graph, 0)
    assert layer.o_proj.weight.shape[1] == 4 * WIDTH
    assert value_rows(layer).shape[0] == KEYS * WIDTH


@pytest.mark.parametrize(("family", "kernel"), CASES)
def test_dead_heads_go_with_the_keys_and_values_they_share(family: str, kernel: str) -> None:
    graph = graph_of(family, kernel)
    silence(graph, [[0, 1, 2, 3], [4, 5, 6, 7]])
    with torch.no_grad():
        for number, gone in enumerate((slice(0, WIDTH), slice(WIDTH, 2 * WIDTH))):
            value_rows(attention(graph, number))[gone] *= 1e-3
    before = logits(graph)
    removed = prune(graph, "head")
    assert [(r["before"], r["after"]) for r in removed] == [(2, 1)] * 2
    torch.testing.assert_close(logits(graph), before, rtol=1e-4, atol=1e-5)
    layer: Any = attention(graph, 0)
    assert layer.o_proj.weight.shape[1] == 4 * WIDTH


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("phi3", "l1-norm"),
        ("qwen3", "wanda"),
        *(pytest.param("llama", method, marks=SLOW) for method in ("l1-norm", "wanda")),
    ],
)
def test_dead_channels_of_a_gated_mlp_go_from_all_its_layers(family: str, method: str) -> None:
    graph = graph_of(family)
    with torch.no_grad():
        for number, first in enumerate((0, 8)):
            layer: Any = mlp(graph, number)
            gone = slice(first, first + 16)
            up = layer.gate_up_proj if family == "phi3" else layer.up_proj
            up.weight[-32:][gone] *= 1e-3
            layer.down_proj.weight[:, gone] = 0.0
    before = logits(graph)
    names = ["gate_up_proj"] if family == "phi3" else ["gate_proj", "up_proj"]
    removed = prune(graph, "channel", target_modules=names, method=method, batches=[IDS])
    assert [(r["before"], r["after"]) for r in removed] == [(32, 16)] * 2
    torch.testing.assert_close(logits(graph), before, rtol=1e-4, atol=1e-5)
    assert mlp(graph, 1).get_submodule("down_proj").weight.shape[1] == 16


@pytest.mark.parametrize("granularity", ["head", "query_head"])
@pytest.mark.parametrize("family", ["qwen3", pytest.param("phi3", marks=SLOW)])
def test_a_pruned_graph_generates_with_its_cache_as_without(family: str, granularity: str) -> None:
    graph = graph_of(family)
    prune(graph, granularity)
    given = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "do_sample": False}
    found = graph.generate(**given, max_new_tokens=6, use_cache=True)
    slow = graph.generate(**given, max_new_tokens=6, use_cache=False)
    assert found.shape[1] > IDS.shape[1] and torch.equal(found, slow)


@pytest.mark.parametrize("family", ["qwen3", pytest.param("llama", marks=SLOW)])
@pytest.mark.parametrize(("granularity", "sizes"), [("head", (4, 1)), ("query_head", (4, 2))])
def test_a_pruned_folder_is_plain_and_says_its_heads(
    family: str, granularity: str, sizes: tuple[int, int], tmp_path: Path
) -> None:
    graph = graph_of(family)
    prune(graph, granularity)
    prune(graph, "channel", target_modules=["gate_proj", "up_proj"])
    to_huggingface(graph, tmp_path / "m")
    told = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (told["num_attention_heads"], told["num_key_value_heads"]) == sizes
    assert told["head_dim"] == WIDTH and told["intermediate_size"] == 16
    assert "quantization_config" not in told
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, logits(graph), rtol=1e-5, atol=1e-6)


@SLOW
@pytest.mark.parametrize("method", ["sparsegpt", pytest.param("wanda", marks=SLOW)])
def test_zeros_survive_adapters_formats_and_folders(method: str, tmp_path: Path) -> None:
    graph = graph_of("qwen3")
    weight = {"granularity": "2:4", "method": method, "target_modules": ["gate_proj", "q_proj"]}
    passes.prune_transform_pass(graph, {"weight": weight, "batches": [{"input_ids": IDS}]})
    masks = {f"{p}.weight": m for p, m in graph.model.named_modules() if isinstance(m, Masked)}
    passes.insert_lora_adapter_transform_pass(graph, {"rank": 2})
    passes.fuse_lora_weights_transform_pass(graph)
    config = {"name": "mxint", "weight_width": 4, "data_in_width": "NA", "bias_width": "NA"}
    passes.quantize_transform_pass(graph, {"linear": {"config": config}})
    passes.gptq_transform_pass(graph, {"data": [{"input_ids": IDS}]})
    to_huggingface(graph, tmp_path / "m")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, logits(graph), rtol=1e-5, atol=1e-6)
    assert len(masks) == 4
    for name, layer in masks.items():
        path = name.removesuffix(".weight")
        loaded: Any = model.get_submodule(path)
        assert not loaded.float_weight()[~layer.weight_mask].any()
        assert torch.equal(graph.model.get_submodule(path).weight_mask, layer.weight_mask)


def test_inputs_decide_which_heads_go_by_wanda() -> None:
    graph = graph_of("qwen3")
    silence(graph, [[0, 3, 5, 6], [1, 2, 4, 7]])
    before = logits(graph)
    prune(graph, "query_head", method="wanda", batches=[{"input_ids": IDS}])
    torch.testing.assert_close(logits(graph), before, rtol=1e-4, atol=1e-5)


def test_query_heads_that_share_nothing_are_refused() -> None:
    config = transformers.LlamaConfig(**(SIZES | {"num_key_value_heads": 8}))
    graph = MaseGraph(transformers.LlamaForCausalLM(config).eval(), hf_input_names=["input_ids"])
    with pytest.raises(PassError, match=r"no query_head .* can be removed.*remove a 'head'"):
        prune(graph, "query_head")
    with pytest.raises(ConfigError, match="scope 'global' has no meaning for granularity 'query"):
        prune(graph, "query_head", scope="global")
