"""A prompt that native steps read has the bits of its tokens one after the other."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from generating_models import graph
from kernels.test_native_step import NATIVE, ROUNDED_WEIGHTS, packed
from transformers import DynamicCache

from chop.kernels.cache import PackedCache
from chop.kernels.native_prompt import MOST_PROMPT
from chop.kernels.native_step import MOST_TOKENS, NativeStep
from chop.kernels.step_code import library
from chop.serve.batch_cache import BatchCache


def shares_rows(*, rounded: bool = False) -> bool:
    built = library()
    return built is not None and bool(built.mase_step_shares_rows(rounded))


pytestmark = pytest.mark.skipif(not shares_rows(), reason="needs a C++ compiler and AVX-512")

QUICK = ("Llama", "Mistral")
FAMILIES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NATIVE]
CACHES: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda config: DynamicCache(config=config),
    "batch": BatchCache,
}


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def drawn(count: int, seed: int = 0) -> torch.Tensor:
    draw = random.Random(seed)
    return torch.tensor([[draw.randrange(3, 90) for _ in range(count)]])


def call(native: NativeStep, ids: torch.Tensor, past: Any, **more: Any) -> Any:
    first = past.get_seq_length()
    positions = first + torch.arange(ids.shape[1])[None]
    names = native._model.input_names
    inputs = {"input_ids": ids, "past_key_values": past, "position_ids": positions, **more}
    return native.run({k: v for k, v in inputs.items() if k in names})


@pytest.mark.share(2)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("weights", ["mxint4", "int4", "mxint8", *ROUNDED_WEIGHTS])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_has_the_bits_of_its_tokens_one_after_the_other(
    name: str, weights: str, cache: str
) -> None:
    if weights in ROUNDED_WEIGHTS and not shares_rows(rounded=True):
        pytest.skip("needs AVX-512 VNNI")
    of = packed(name, weights)
    native = NativeStep(of.model)
    for count in (1, 2, MOST_TOKENS, MOST_TOKENS + 1, 39, MOST_PROMPT):
        whole, single = (CACHES[cache](of.model.config) for _ in range(2))
        ids = drawn(count, count)
        together = call(native, ids, whole)
        assert together is not None, native.problem
        ones = [call(native, ids[:, i : i + 1], single).logits for i in range(count)]
        assert torch.equal(together.logits, torch.cat(ones, 1))
        assert whole.get_seq_length() == count
        for one, other in zip(whole.layers, single.layers, strict=True):
            assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)
        after = [call(native, drawn(1, 7), past).logits for past in (whole, single)]
        assert torch.equal(*after)


@pytest.mark.parametrize("weights", ["mxint4", "rounded offsets"])
def test_the_last_logits_alone_are_those_of_all(weights: str) -> None:
    of = packed("Llama", weights)
    native, caches = NativeStep(of.model), [DynamicCache(config=of.model.config) for _ in range(2)]
    whole = call(native, drawn(39), caches[0], logits_to_keep=0).logits
    last = call(native, drawn(39), caches[1], logits_to_keep=1).logits
    assert last.shape[1] == 1 and torch.equal(whole[:, -1:], last)
    assert torch.equal(caches[0].layers[-1].values, caches[1].layers[-1].values)


@pytest.mark.slow
def test_a_prompt_is_read_as_pytorch_reads_it() -> None:
    of = packed("Llama", "mxint4")
    past, plain = (DynamicCache(config=of.model.config) for _ in range(2))
    native = call(NativeStep(of.model), drawn(39), past)
    expected = of.model(input_ids=drawn(39), past_key_values=plain)
    for one, other in (
        (native.logits, expected.logits),
        (past.layers[1].keys, plain.layers[1].keys),
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)  # another order of additions


LEFT: dict[str, Callable[[], tuple[Any, torch.Tensor, Any, dict[str, Any]]]] = {
    "float weights": lambda: (graph("Llama"), drawn(9), None, {}),
    "a long prompt": lambda: (packed("Llama", "mxint4"), drawn(MOST_PROMPT + 1), None, {}),
    "two prompts": lambda: (packed("Llama", "mxint4"), drawn(9).repeat(2, 1), None, {}),
    "padding": lambda: (
        packed("Llama", "mxint4"), drawn(9), None,
        {"attention_mask": torch.tensor([[0, *[1] * 8]])},
    ),
    "a cache in a number format": lambda: (packed("Llama", "mxint4"), drawn(9), PackedCache, {}),
    "one token for such a cache": lambda: (packed("Llama", "mxint4"), drawn(1), PackedCache, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_other_prompts_are_left_to_pytorch_with_an_empty_cache(case: str) -> None:
    of, ids, kind, more = LEFT[case]()
    config = of.model.config
    past = DynamicCache(config=config) if kind is None else kind(config, "mxint8")
    native = NativeStep(of.model)
    assert call(native, ids, past, **more) is None and native.problem is None
    assert past.get_seq_length() == 0
    of.model(input_ids=ids, past_key_values=past)
    assert past.get_seq_length() == ids.shape[1]


@pytest.mark.parametrize("cache", CACHES)
def test_a_block_that_fails_leaves_the_cache_empty(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = packed("Llama", "mxint4")
    native, past = NativeStep(of.model), CACHES[cache](of.model.config)
    execute, ran = native._execute, []

    def fail_second(*args: Any, **options: Any) -> bool:
        ran.append(1)
        return len(ran) != 2 and execute(*args, **options)

    monkeypatch.setattr(native, "_execute", fail_second)
    before = [copy.deepcopy(vars(layer)) for layer in past.layers]
    assert call(native, drawn(39), past) is None and len(ran) == 2
    assert [vars(layer) for layer in past.layers] == before
    assert call(native, drawn(39), past) is not None  # by the same programs, from the start
    assert past.get_seq_length() == 39


def test_a_layer_of_another_class_leaves_all_layers_empty() -> None:
    of = packed("Llama", "mxint4")
    past, other = DynamicCache(config=of.model.config), PackedCache(of.model.config, "mxint8")
    past.layers[-1] = other.layers[-1]
    before = [copy.deepcopy(vars(layer)) for layer in past.layers]
    assert call(NativeStep(of.model), drawn(20), past) is None
    assert [vars(layer) for layer in past.layers] == before


def test_a_prompt_needs_two_programs() -> None:
    of = packed("Llama", "mxint4")
    native = NativeStep(of.model)
    for count in (3, 20, 33, 64):
        call(native, drawn(count), DynamicCache(config=of.model.config))
    assert set(native._programs) == {1, MOST_TOKENS}
