"""Sequences in pages: they share a pool, keep their bits, and return their pages."""

from __future__ import annotations

import random

import pytest
import torch
from generating_models import graph
from kernels.test_native_step import packed
from transformers import DynamicCache

from chop.errors import ConfigError
from chop.kernels.cache_pages import PAGE, SLAB, PagedSequence, PagePool, pages_for
from chop.kernels.native_step import NativeStep
from chop.kernels.step_code import library
from chop.serve.batch_cache import SPARE
from chop.serve.batch_engine import BatchEngine, EngineLimits
from chop.serve.jobs import CANCELLED, Job, TokenList
from chop.serve.paged_batch import PagedBatch
from chop.serve.request_errors import ContextLengthError
from chop.serve.sampling import Sampling

LAYERS = 2


def drawn(count: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 90) for _ in range(count)]


def jobs(lengths: list[int], most: int) -> list[Job]:
    options = Sampling(max_tokens=most)
    return [Job(tuple(drawn(n, n)), options, TokenList()) for n in lengths]


@pytest.mark.skipif(library() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_a_native_step_on_pages_has_the_bits_of_a_plain_cache(name):
    of, lengths = graph(name), [3, PAGE, 2 * PAGE - 1]
    native, pool = NativeStep(of.model), PagePool(12, LAYERS)
    names, alone, batch = of.model.input_names, [], PagedBatch(pool)
    with torch.inference_mode():
        for length in lengths:
            prompt = torch.tensor([drawn(length, length)])
            row = PagedBatch(pool, [PagedSequence(pool, length + 20)])
            of.model(**{k: v for k, v in row.inputs(prompt).items() if k in names})
            alone.append(DynamicCache(config=of.model.config))
            for number, layer in enumerate(row.layers):
                alone[-1].update(layer.keys, layer.values, number)
            batch.join(row)
        for step in range(20):
            token = torch.tensor([[5 + step]])
            inputs = batch.inputs(token.expand(len(lengths), 1))
            together = native.run({k: v for k, v in inputs.items() if k in names})
            assert together is not None, native.problem
            for row, past in enumerate(alone):
                single = native.run({"input_ids": token, "past_key_values": past})
                assert torch.equal(together.logits[row], single.logits[0])


@pytest.mark.parametrize("weights", ["mxint4", "rounded offsets"])
def test_prompts_over_several_pages_and_slabs_keep_their_bits(weights):
    of, prompt = packed("Llama", weights), drawn(50)
    engine = BatchEngine(of, EngineLimits(max_batch=3, max_cached_tokens=64 * PAGE))
    assert engine._pool is not None
    held = [PagedSequence(engine._pool, PAGE * SLAB - PAGE)]  # pages of the first slab
    held[0].grow(PAGE * SLAB - PAGE)
    given = [prompt, drawn(33, 1), drawn(3, 2)]
    expected = [BatchEngine(of).generate([each], Sampling(max_tokens=40))[0] for each in given]
    assert engine.generate(given, Sampling(max_tokens=40)) == expected
    assert engine._pool.used == SLAB - 1
    ids = torch.tensor([prompt])
    offline = of.generate(ids, max_new_tokens=40, do_sample=False)[0, len(prompt) :].tolist()
    assert expected[0] == offline


def test_pages_return_at_the_end_and_when_clients_leave():
    engine = BatchEngine(graph("Llama"), EngineLimits(max_batch=4))
    pool, given = engine._pool, jobs([40, 7, 70, 20], 30)
    assert pool is not None
    engine.submit(given)
    engine.step()
    assert pool.used == sum(pages_for(n + 1) for n in (40, 7, 70, 20))
    assert engine.reserved_tokens == PAGE * sum(pages_for(n + 30) for n in (40, 7, 70, 20))
    engine.cancel([given[2]])
    engine.step()
    assert given[2].listener.reason == CANCELLED and pool.used == 2 + 1 + 1
    while engine.step():
        pass
    assert (pool.used, pool.reserved, engine.cached_tokens) == (0, 0, 0)


def test_a_sequence_that_grows_stays_where_it_is():
    pool = PagePool(4, 1)
    row = PagedBatch(pool, [PagedSequence(pool, 3 * PAGE)])
    states = torch.randn(1, 2, 3 * PAGE, 8)
    addresses = []
    for token in range(3 * PAGE):
        row.inputs(torch.zeros(1, 1, dtype=torch.long))
        keys, values = row.update(
            states[:, :, token : token + 1], states[:, :, token : token + 1], 0
        )
        addresses.append(pool.layers[0].keys[0].data_ptr())
    assert len(set(addresses)) == 1 and torch.equal(keys, states) and torch.equal(values, states)


def test_sequences_of_mixed_lengths_share_the_memory():
    pool, lengths = PagePool(84, 1), (20, 50, 100, 150, 250, 400, 600, 1000)
    assert sum(map(pages_for, lengths)) == pool.limit
    sequences = [PagedSequence(pool, length) for length in lengths]
    for sequence, length in zip(sequences, lengths, strict=True):
        sequence.grow(length)
    assert pool.used == pool.limit and not pool.has_room(1)
    padded = len(lengths) * (max(lengths) + SPARE)
    assert (pool.used * PAGE, padded) == (2688, 8512)  # as in docs/serve.md
    sequences[-1].release()
    again = PagedSequence(pool, 1000)
    again.grow(1000)
    pages = [page for each in (*sequences[:-1], again) for page in each.pages]
    assert sorted(pages) == list(range(pool.limit))


def test_jobs_wait_in_order_until_the_pool_has_room():
    limits = EngineLimits(max_batch=8, max_cached_tokens=4 * PAGE)
    engine, given = BatchEngine(graph("Llama"), limits), jobs([3, 40, 60, 5], 20)
    engine.submit(given)
    engine.step()
    assert (engine.running, engine.waiting) == (2, 2)  # 1 and 2 pages; the next needs 3
    assert engine.reserved_tokens == 3 * PAGE <= engine.max_cached_tokens
    while engine.step():
        assert engine.reserved_tokens <= engine.max_cached_tokens
    alone = BatchEngine(graph("Llama"))
    for job in given:
        tokens = [token.id for token in job.listener.tokens]
        assert tokens == alone.generate([job.prompt], job.sampling)[0]


@pytest.mark.parametrize("cache", ["float", "mxint8"])
def test_a_sequence_that_never_fits_is_refused(cache):
    limits = EngineLimits(max_cached_tokens=2 * PAGE)
    engine = BatchEngine(graph("Llama"), limits, cache=cache)
    words = "together 70. The cache has room for 64, in pages of 32"
    with pytest.raises(ContextLengthError, match=words):
        engine.submit(jobs([50], 20))
    engine.submit(jobs([44], 20))


def test_a_limit_below_one_page_is_refused():
    with pytest.raises(ConfigError, match=r"max_cached_tokens: 31\. Allowed: 32 or more"):
        EngineLimits(max_cached_tokens=31)
