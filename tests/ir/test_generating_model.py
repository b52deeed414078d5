"""A graph with a cache generates what the eager model of transformers generates by itself."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from covering import slow_unless
from generating_models import FAMILIES, PAIRS, agree, graph, made, model, prompts, tokens
from torch import nn
from transformers import CompileConfig, DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache

from chop import MaseGraph
from chop.errors import GraphError, TraceError
from chop.ir import kv_cache
from chop.passes import init_metadata_analysis_pass, quantize_transform_pass

WAYS: dict[str, dict[str, Any]] = {
    "sampling": {"do_sample": True, "top_k": 20, "temperature": 1.3},
    "beams": {"num_beams": 3},
    "static cache": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
}


LONGER = ("Qwen2", "Gemma 2", "Phi-3", "GPT-NeoX", "Mixtral", "BART")
"""Families that are much like another, and run with the slow tests."""
EACH = [pytest.param(n, marks=[pytest.mark.slow] * (n in LONGER)) for n in FAMILIES]


def _side(name: str) -> str:
    return "right" if name in PAIRS else "left"


@pytest.mark.parametrize("name", EACH)
def test_every_family_gives_the_tokens_of_the_model_for_a_padded_batch(name: str) -> None:
    given = prompts(name, side=_side(name))
    assert len(tokens(model(name).generate, given).unique()) > 3, (
        "tokens that do not vary say nothing"
    )
    assert agree(name, given)


@pytest.mark.parametrize("name", EACH)
def test_a_graph_with_a_cache_is_open_in_batch_and_length(name: str) -> None:
    sizes = graph(name).open_sizes()
    if name == "Whisper":  # its encoder takes one length alone
        assert sizes.pop("input_features") == ["free", "free", "pinned"]
    assert all(size == ["free", "free"] for size in sizes.values())


@pytest.mark.parametrize("name", ["GPT-2", *(e for e in EACH if e.values[0] in LONGER[2:5])])
def test_a_model_in_bfloat16_is_open_too(name: str) -> None:
    sizes = MaseGraph(made(name).to(torch.bfloat16), cache=True).open_sizes()
    assert sizes == {"input_ids": ["free", "free"], "attention_mask": ["free", "free"]}


MODELS = ("Llama", "Gemma 3", "T5")
TURNS = [(MODELS[k % 3], way) for k, way in enumerate(WAYS)]
"""Every way and every model; `make slow` tries all pairs."""


@pytest.mark.parametrize(
    ("name", "way"), slow_unless(itertools.product(MODELS, WAYS), TURNS.__contains__)
)
def test_sampling_beams_and_static_caches_give_the_tokens_of_the_model(name: str, way: str) -> None:
    assert agree(name, prompts(name, side=_side(name)), **WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in ("Llama", "Gemma 3", "T5")])
def test_every_way_of_every_family_gives_the_tokens_of_the_model(name: str, way: str) -> None:
    assert agree(name, prompts(name, side=_side(name)), **WAYS[way])


def test_right_padding_gives_what_the_model_gives() -> None:
    assert agree("Llama", prompts("Llama", side="right"))


def test_a_sliding_window_shorter_than_the_text_is_kept() -> None:
    given = prompts("Mistral")
    short = tokens(model("Mistral").generate, given, max_new_tokens=20)
    assert torch.equal(tokens(graph("Mistral").generate, given, max_new_tokens=20), short)


def test_tokens_are_streamed_one_by_one() -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[Any] = []

        def put(self, value: torch.Tensor) -> None:
            self.heard.append(value.flatten())

        def end(self) -> None:
            self.heard.append("end")

    listener = Listener()
    given = {k: v[:1] for k, v in prompts("Llama").items()}
    found = tokens(graph("Llama").generate, given, streamer=listener)
    assert listener.heard.pop() == "end"
    assert torch.equal(torch.cat(listener.heard), found[0])


def test_a_conversation_goes_on_with_the_cache_it_has() -> None:
    given = {k: v[:1] for k, v in prompts("Llama").items()}
    for generate in (model("Llama").generate, graph("Llama").generate):
        cache = DynamicCache(config=model("Llama").config)
        first = tokens(generate, given, past_key_values=cache, max_new_tokens=4)
        more = torch.cat([first, first[:, :3]], dim=1)
        second = tokens(generate, {"input_ids": more}, past_key_values=cache)
        if generate == model("Llama").generate:
            expected = second
    assert torch.equal(second, expected)


def test_without_a_cache_the_graph_gives_the_values_of_the_model() -> None:
    given = prompts("Llama")
    with torch.no_grad():
        expected = model("Llama")(**given)
        found = graph("Llama").model(**given)
        alone = graph("Llama").model(given["input_ids"][:1]).logits
        expected_alone = model("Llama")(given["input_ids"][:1]).logits
    seen = given["attention_mask"].bool()  # what padding gives depends on the kernel
    assert torch.allclose(found.logits[seen], expected.logits[seen], atol=1e-5)
    assert torch.allclose(alone, expected_alone, atol=1e-5)
    assert found.past_key_values is None


def test_positions_that_follow_the_mask_do_so_without_generate() -> None:
    given = prompts("OPT")
    with torch.no_grad():
        expected, found = model("OPT")(**given).logits, graph("OPT").model(**given).logits
    seen = given["attention_mask"].bool()
    assert torch.allclose(found[seen], expected[seen], atol=1e-5)


def test_copies_and_files_generate_alike(tmp_path: Any) -> None:
    for name in ("Llama", "T5"):
        given = prompts(name, side=_side(name))
        expected = tokens(model(name).generate, given)
        graph(name).export(tmp_path / name)
        copies = (
            copy.deepcopy(graph(name)),
            pickle.loads(pickle.dumps(graph(name))),
            MaseGraph.from_checkpoint(tmp_path / name),
        )
        for each in copies:
            assert torch.equal(tokens(each.generate, given), expected)


def test_the_generation_config_of_the_model_is_kept(tmp_path: Any) -> None:
    own = made("Llama")
    own.generation_config.max_new_tokens = 3
    mg = MaseGraph(own, cache=True)
    mg.export(tmp_path / "own")
    given = prompts("Llama")
    for each in (mg, copy.deepcopy(mg), MaseGraph.from_checkpoint(tmp_path / "own")):
        assert each.generate(**given).shape[1] == given["input_ids"].shape[1] + 3


def test_static_caches_compile_into_one_graph() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # reset leaves what tests before have counted
    given = prompts("Llama")
    config = CompileConfig(backend="eager", mode=None, fullgraph=True)
    config._compile_all_devices = True
    mg = MaseGraph(made("Llama"), cache=True)
    found = tokens(mg.generate, given, cache_implementation="static", compile_config=config)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()
    assert torch.equal(found, tokens(model("Llama").generate, given))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "Mixtral"])  # compiles in bfloat16
def test_every_family_compiles_with_a_static_cache(name: str) -> None:
    torch._dynamo.reset()
    given = prompts(name, side=_side(name))
    config = CompileConfig(backend="eager", mode=None)
    config._compile_all_devices = True
    options = {"cache_implementation": "static", "compile_config": config}
    found = tokens(graph(name).generate, given, **options)
    torch._dynamo.reset()
    assert torch.equal(found, tokens(model(name).generate, given))


@pytest.mark.slow
def test_compiled_code_gives_the_tokens_of_the_model() -> None:
    torch._dynamo.reset()
    config = CompileConfig(mode="reduce-overhead", fullgraph=True)
    config._compile_all_devices = True
    options = {"cache_implementation": "static", "compile_config": config}
    found = tokens(graph("Llama").generate, prompts("Llama"), **options)
    torch._dynamo.reset()
    assert torch.equal(found, tokens(model("Llama").generate, prompts("Llama")))


def test_the_encoder_is_projected_once() -> None:
    cache = graph("T5").as_transformers()
    given = prompts("T5", side="right")
    lengths = []
    layer = graph("T5").model.get_submodule("decoder.block.0.layer.1.EncDecAttention.k")
    handle = layer.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    try:
        tokens(cache.generate, given, max_new_tokens=4)
    finally:
        handle.remove()
    assert lengths == [given["input_ids"].shape[1], 1, 1, 1]


def test_an_unchanged_graph_is_captured_again_with_its_cache(caplog) -> None:
    mg = MaseGraph(model("Llama"), ["input_ids", "attention_mask"])
    mg, _ = init_metadata_analysis_pass(mg)
    given = prompts("Llama")
    found = tokens(mg.generate, given)
    assert torch.equal(found, tokens(mg.generate, given))
    assert torch.equal(found, tokens(model("Llama").generate, given))
    assert caplog.text.count("captured without its cache. It is captured again") == 1
    assert "_cached" not in vars(pickle.loads(pickle.dumps(mg)))


@pytest.mark.parametrize("mask", [[], ["attention_mask"]])
def test_a_graph_with_labels_generates_without_them(mask) -> None:
    mg = MaseGraph(model("Llama"), ["input_ids", *mask, "labels"], cache=True)
    given = {k: v[:1] for k, v in prompts("Llama").items()}
    assert torch.equal(tokens(mg.generate, given), tokens(model("Llama").generate, given))
    ids = given["input_ids"]
    loss = mg.model(input_ids=ids, labels=ids).loss
    assert torch.allclose(loss, model("Llama")(input_ids=ids, labels=ids).loss, atol=1e-5)


def test_a_changed_graph_without_its_cache_says_how_to_get_one() -> None:
    mg = MaseGraph(model("Llama"), ["input_ids", "attention_mask"])
    given = prompts("Llama")
    changed = copy.deepcopy(mg)
    quantize_transform_pass(changed, {"linear": {"config": {"name": "mxint"}}})
    with pytest.raises(GraphError, match=r"without its cache, and changed.*use_cache=False"):
        changed.generate(**given)
    with pytest.raises(GraphError, match=r"does not take 'position_ids'.*unequal lengths"):
        mg.generate(**given, use_cache=False)
    first = {k: v[:1] for k, v in given.items()}
    found = tokens(mg.generate, first, use_cache=False)
    assert torch.equal(found, tokens(model("Llama").generate, first))


def test_what_has_no_cache_is_refused() -> None:
    with pytest.raises(TraceError, match=r"Linear\.forward has no input 'past_key_values'"):
        MaseGraph(nn.Linear(2, 2), dummy_in=torch.zeros(1, 2), cache=True)
    flex = LlamaForCausalLM(LlamaConfig(**FAMILIES["Llama"][2]))
    flex.config._attn_implementation = "flex_attention"
    with pytest.raises(TraceError, match=r"attention by 'flex_attention'\. Allowed: sdpa, eager"):
        MaseGraph(flex, cache=True)


def test_a_release_whose_caches_do_not_count_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "get_mask_sizes", lambda self, cache_position, layer_idx: (0, 0))
    with pytest.raises(TraceError, match=r"the caches of transformers \d.* do not count tokens"):
        MaseGraph(model("Llama"), cache=True)


def test_what_does_not_generate_is_refused() -> None:
    with pytest.raises(GraphError, match="not captured from a model of transformers"):
        MaseGraph(nn.Linear(2, 2), dummy_in=torch.zeros(1, 2)).generate()
    with pytest.raises(GraphError, match="does not take 'output_hidden_states'"):
        graph("Llama").generate(**prompts("Llama"), output_hidden_states=True)


def test_masks_and_positions_are_those_of_the_definition() -> None:
    mask = torch.tensor([[0, 1, 1, 1]])
    states = torch.zeros(1, 4, 2)
    seen = kv_cache.causal_mask(mask, states, None, window=2)[0, 0].int().tolist()
    assert seen == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    added = kv_cache.causal_mask(None, states[:, :2], None, is_additive=True)[0, 0]
    assert added.tolist() == [[0, torch.finfo(torch.float32).min], [0, 0]]
    assert kv_cache.positions(None, torch.zeros(1, 3), None).tolist() == [[0, 1, 2]]
    assert kv_cache.positions(None, torch.zeros(1, 2), None, mask).tolist() == [[1, 2]]
