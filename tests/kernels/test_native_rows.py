"""Rows of a native decode step have the bits of each row alone, whatever else is in the batch."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from generating_models import graph, model, prompts, tokens
from kernels.test_native_step import (
    NATIVE,
    ROUNDED_WEIGHTS,
    WEIGHTS,
    has_byte_products,
    packed,
)
from torch import Tensor
from transformers import DynamicCache

from chop import MaseGraph
from chop.kernels.native_step import MOST_TOKENS, NativeStep
from chop.kernels.step_code import library
from chop.serve.batch_cache import BatchCache

pytestmark = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")

QUICK = ("Llama", "Mistral", "GPT-2")
"""Families of the fast tests: grouped keys, a sliding window, and transposed float weights."""
FAMILIES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NATIVE]
MOST_ROWS = 15
"""A block of eight rows, one of four, a pair and one more."""


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class Sequences:
    """Sequences that join and leave a batch; each also runs alone, on a cache of its own."""

    def __init__(self, of: MaseGraph, seed: int, cache: str = "float") -> None:
        self.draw, self.of, self.cache = random.Random(seed), of, cache
        self.native = NativeStep(of.model)
        self.batch: BatchCache | None = None
        self.alone: list[BatchCache] = []

    def join(self) -> None:
        """Read a prompt of random length and append it to the batch."""
        cache = BatchCache(self.of.model.config, self.cache)
        inputs = cache.inputs(self.tokens(1, self.draw.randrange(1, 20)))
        self.of.model(**self.known(inputs))
        self.alone.append(copy.deepcopy(cache))
        if self.batch is None:
            self.batch = cache
        else:
            self.batch.join(cache)

    def leave(self) -> None:
        """Remove a random sequence."""
        rows = list(range(len(self.alone)))
        rows.pop(self.draw.randrange(len(rows)))
        self.alone = [self.alone[row] for row in rows]
        assert self.batch is not None
        self.batch.keep(rows)

    def step(self) -> None:
        """Run one token of each sequence together and alone; assert equal bits."""
        assert self.batch is not None
        ids = self.tokens(len(self.alone), 1)
        together = self.native.run(self.known(self.batch.inputs(ids)))
        assert together is not None, self.native.problem
        for row, cache in enumerate(self.alone):
            single = self.native.run(self.known(cache.inputs(ids[row : row + 1])))
            assert single is not None, self.native.problem
            assert torch.equal(together.logits[row], single.logits[0]), (row, self.batch.lengths)

    def tokens(self, rows: int, count: int) -> Tensor:
        return torch.tensor(
            [[self.draw.randrange(3, 90) for _ in range(count)] for _ in range(rows)]
        )

    def known(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in inputs.items() if k in self.of.model.input_names}


def compare(of: MaseGraph, seed: int = 0, events: int = 24, cache: str = "float") -> None:
    sequences = Sequences(of, seed, cache)
    for _ in range(MOST_ROWS - 7):
        sequences.join()
    for _ in range(events):
        choice = sequences.draw.random()
        if choice < 0.45 and len(sequences.alone) < MOST_ROWS:
            sequences.join()
        elif choice < 0.6 and len(sequences.alone) > 1:
            sequences.leave()
        sequences.step()


@pytest.mark.share(2)
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_that_join_and_leave_have_the_bits_of_each_alone(name: str) -> None:
    compare(graph(name))


@pytest.mark.share(2)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_rows_on_packed_weights_have_the_bits_of_each_alone(weights: str) -> None:
    if weights in ROUNDED_WEIGHTS and not has_byte_products():
        pytest.skip("needs a processor with products of bytes; others round in PyTorch")
    compare(packed("Llama", weights), seed=1)


def test_rows_of_a_cache_in_a_number_format_have_the_bits_of_each_alone() -> None:
    compare(graph("Llama"), seed=2, events=6, cache="mxint8")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_any_history_of_a_batch_leaves_every_row_as_it_is(seed: int) -> None:
    draw = random.Random(seed)
    of = packed(draw.choice(NATIVE), draw.choice([w for w in WEIGHTS if w not in ROUNDED_WEIGHTS]))
    compare(of, seed, events=80)


@pytest.mark.share(2)
@pytest.mark.parametrize("weights", [None, "mxint4", "int4", "mxint8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_of_a_sequence_together_have_the_bits_of_each_after_the_other(
    name: str, weights: str | None
) -> None:
    of = graph(name) if weights is None else packed(name, weights)
    draw, native = random.Random(5), NativeStep(of.model)
    ids = torch.tensor([[draw.randrange(3, 90) for _ in range(80)]])
    caches = [DynamicCache(config=of.model.config) for _ in range(2)]
    for past in caches:
        of.model(input_ids=ids[:, :9], past_key_values=past)
    first = 9
    while first + MOST_TOKENS <= ids.shape[1]:
        count = draw.randrange(2, MOST_TOKENS + 1)
        part = ids[:, first : first + count]
        together = native.run({"input_ids": part, "past_key_values": caches[0]})
        assert together is not None, native.problem
        for at in range(count):
            one = native.run({"input_ids": part[:, at : at + 1], "past_key_values": caches[1]})
            assert torch.equal(together.logits[:, at], one.logits[:, 0]), at
        first += count
    for one, other in zip(*(past.layers for past in caches), strict=True):
        assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)


def test_tokens_of_a_sequence_that_are_dropped_leave_no_trace() -> None:
    of, native, caches = graph("Llama"), NativeStep(graph("Llama").model), [started(1), started(1)]
    native.run({"input_ids": torch.tensor([[3, 4, 5]]), "past_key_values": caches[0]})
    caches[0].crop(-2)  # keeps the first of them
    native.run({"input_ids": torch.tensor([[3]]), "past_key_values": caches[1]})
    one, other = (
        native.run({"input_ids": torch.tensor([[8, 9]]), "past_key_values": past})
        for past in caches
    )
    assert torch.equal(one.logits, other.logits)
    assert of.model.config.vocab_size == one.logits.shape[-1]


UNUSUAL: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda row: row * 0,
    "whole numbers": lambda row: row.round(),
    "huge numbers": lambda row: row * 1e37,
    "numbers near zero": lambda row: row * 1e-38,
    "no number": lambda row: row * float("nan"),
    "an infinite one": lambda row: torch.cat([row[:-1], torch.tensor([torch.inf])]),
}
"""Activations whose product alone is computed in another way than most."""


@pytest.mark.parametrize("weights", [None, "mxint4", "int4", "mxint8", "mxfp8"])
def test_unusual_activations_of_a_row_change_no_other_row(weights: str | None) -> None:
    of = copy.deepcopy(graph("GPT-2") if weights is None else packed("GPT-2", weights))
    plain = copy.deepcopy(graph("GPT-2").model.transformer.wte.weight.data)
    for token, change in enumerate(UNUSUAL.values(), 3):
        plain[token] = change(plain[token])
    of.model.transformer.set_submodule("wte", torch.nn.Embedding.from_pretrained(plain))
    for norm in [m for m in of.model.modules() if isinstance(m, torch.nn.LayerNorm)]:
        norm.eps = 0.0  # a row stays as unusual as it is
    ids = torch.tensor([[40], *([t] for t in range(3, 3 + len(UNUSUAL))), [41], [42], [43]])
    native, past = NativeStep(of.model), DynamicCache(config=of.model.config)
    of.model(input_ids=torch.full((len(ids), 4), 50), past_key_values=past)
    alone = [copy.deepcopy(past) for _ in ids]
    together = native.run({"input_ids": ids, "past_key_values": past})
    for row, cache in enumerate(alone):
        cache.batch_select_indices(torch.tensor([row]))
        single = native.run({"input_ids": ids[row : row + 1], "past_key_values": cache})
        if single is None:  # the program refuses the row, and with it the batch
            assert together is None
        else:
            assert together is not None
            torch.testing.assert_close(
                together.logits[row], single.logits[0], rtol=0, atol=0, equal_nan=True
            )


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_of_unequal_lengths_generate_natively(name: str) -> None:
    of = copy.deepcopy(graph(name))
    expected = tokens(model(name).generate, prompts(name), max_new_tokens=24)
    ran: list[int] = []
    run = NativeStep.run

    class Counted(NativeStep):
        def run(self, arguments: Any) -> Any:
            result = run(self, arguments)
            ran.append(result is not None)
            return result

    of.as_transformers()._step = Counted(of.model)
    assert torch.equal(tokens(of.generate, prompts(name), max_new_tokens=24), expected)
    assert sum(ran) == len(ran) - 1 > 0  # all but the prompt


def started(rows: int) -> DynamicCache:
    past = DynamicCache(config=graph("Llama").model.config)
    graph("Llama").model(input_ids=torch.full((rows, 5), 7), past_key_values=past)
    return past


MASKS = {
    "a hole": [[1, 1, 0, 1, 1, 1]] * 2,
    "padding on the right": [[1, 1, 1, 1, 1, 0], [1] * 6],
    "a row without tokens": [[0] * 6, [1] * 6],
    "too few numbers": [[1] * 5] * 2,
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_other_than_padding_on_the_left_are_left_to_pytorch(name: str) -> None:
    native = NativeStep(graph("Llama").model)
    call = {
        "input_ids": torch.tensor([[3], [4]]),
        "attention_mask": torch.tensor(MASKS[name]),
        "position_ids": torch.tensor([[5], [5]]),
        "past_key_values": started(2),
    }
    assert native.run(call) is None and native.problem is None
    del call["attention_mask"]
    assert native.run(call) is not None
    call["past_key_values"] = started(3)
    assert native.run(call) is None  # other rows than the cache has


def test_programs_of_other_rows_are_built_again_after_an_exchange_of_weights() -> None:
    of = copy.deepcopy(graph("Llama"))
    native = NativeStep(of.model)
    for rows in (1, 2):
        native.run({"input_ids": torch.full((rows, 1), 3), "past_key_values": started(rows)})
    head = of.model.lm_head
    head.weight = torch.nn.Parameter(head.weight * 2)
    past = started(3)
    calls = {"input_ids": torch.full((3, 1), 3), "past_key_values": past}
    assert native.run(calls) is not None  # a program of new rows
    past.batch_select_indices(torch.tensor([0, 1]))
    calls = {"input_ids": torch.full((2, 1), 4), "past_key_values": past}
    expected = of.model(**{**calls, "past_key_values": copy.deepcopy(past)}).logits
    result = native.run(calls)  # None: the old program is dropped
    result = native.run(calls) if result is None else result
    assert result is not None
    torch.testing.assert_close(result.logits, expected)
