"""Continuous batching: every answer is that of the prompt alone, whatever else is in the batch."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from generating_models import FAMILIES, PAIRS, graph
from kernels.test_native_step import packed

from chop import MaseGraph
from chop.errors import ConfigError
from chop.kernels.cache import PackedCache
from chop.kernels.native_prompt import MOST_PROMPT
from chop.serve.batch_cache import SPARE, BatchCache
from chop.serve.batch_engine import BatchEngine, EngineLimits
from chop.serve.jobs import CANCELLED, LENGTH, STOP, Job, TokenList
from chop.serve.request_errors import (
    ContextLengthError,
    GenerationError,
    QueueFullError,
    RequestError,
    StoppedError,
)
from chop.serve.sampling import Sampling

CAUSAL = [name for name in FAMILIES if name not in PAIRS]
QUICK = ("Llama", "Mistral")
"""Families of the fast tests: grouped keys, and a sliding window."""
NEW = 12


def prompts(count: int, seed: int = 0, longest: int = 19) -> list[list[int]]:
    draw = random.Random(seed)
    lengths = [draw.randrange(1, longest + 1) for _ in range(count)]
    return [[draw.randrange(3, 90) for _ in range(length)] for length in lengths]


def offline(of: MaseGraph, prompt: list[int], new: int = NEW, cache: str = "float") -> list[int]:
    """Return the greedy answer of `generate` to the prompt alone."""
    past = {} if cache == "float" else {"past_key_values": PackedCache(of.model.config, cache)}
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": new, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    return of.generate(ids, **options, **past)[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CAUSAL],
)
def test_answers_equal_those_of_each_prompt_alone(name):
    engine = BatchEngine(graph(name), EngineLimits(max_batch=4))
    given = prompts(9)
    expected = [offline(graph(name), prompt) for prompt in given]
    assert engine.generate(given, Sampling(max_tokens=NEW)) == expected


@pytest.mark.share(2)
@pytest.mark.parametrize("cache", ["mxint8", "int4", "fixed8.4"])
def test_answers_with_a_quantised_cache_equal_those_alone(cache):
    engine = BatchEngine(graph("Llama"), EngineLimits(max_batch=4), cache=cache)
    given = prompts(6)
    expected = [offline(graph("Llama"), prompt, cache=cache) for prompt in given]
    assert engine.generate(given, Sampling(max_tokens=NEW)) == expected


@pytest.mark.share(2)
@pytest.mark.parametrize("weights", [None, "mxint4", "int4"])
def test_jobs_that_join_and_leave_at_any_step_change_no_answer(weights):
    draw, of = random.Random(3), packed("Llama", weights) if weights else graph("Llama")
    engine = BatchEngine(of, EngineLimits(max_batch=3))
    waiting = [
        Job(tuple(p), Sampling(max_tokens=draw.randrange(1, 30)), TokenList())
        for p in prompts(24, 1, longest=MOST_PROMPT + 20)
    ]
    jobs, left = list(waiting), []
    while engine.running or engine.waiting or waiting:
        if waiting and draw.random() < 0.6:
            engine.submit([waiting.pop()])
        if draw.random() < 0.1 and engine._running:
            left.append(draw.choice(engine._running))
            engine.cancel([left[-1]])
        engine.step()
        lengths = [] if engine._batch is None else engine._batch.lengths
        assert len(lengths) == engine.running <= 3
    assert left and engine.cached_tokens == 0
    for job in jobs:
        tokens = [token.id for token in job.listener.tokens]
        expected = offline(of, list(job.prompt), job.sampling.max_tokens)
        assert tokens == expected[: len(tokens)], job.prompt
        assert job.listener.reason == CANCELLED or len(tokens) == len(expected)
        assert (job.listener.reason == CANCELLED) <= (job in left)


@pytest.mark.parametrize("cache", ["float", "mxint8"])
def test_a_long_answer_outgrows_the_spare_columns(cache):
    engine, prompt = BatchEngine(graph("Llama"), cache=cache), prompts(1)[0]
    new = SPARE + 20
    assert engine.generate([prompt], Sampling(max_tokens=new))[0] == offline(
        graph("Llama"), prompt, new, cache
    )


def test_a_short_row_that_stays_frees_the_columns_of_a_long_one():
    cache = BatchCache(graph("Llama").model.config)
    other = BatchCache(graph("Llama").model.config)
    for one, length in ((cache, 50), (other, 3)):
        states = torch.randn(1, 2, length, 8)
        one.inputs(torch.zeros(1, length, dtype=torch.long))
        for layer in range(2):
            one.update(states, states, layer)
    cache.join(other)
    assert (cache.width, cache.lengths) == (50, [50, 3])
    cache.keep([1])
    assert (cache.width, cache.lengths, cache.get_seq_length()) == (3, [3], 3)
    assert torch.equal(cache.layers[1].keys, states)


def with_own_generation_config(name):
    """Return a graph whose settings can change: other tests use the same model."""
    of = MaseGraph(graph(name).original, cache=True)
    of.model.generation_config = copy.deepcopy(of.model.generation_config)
    return of


def test_the_penalty_of_the_generation_config_counts():
    of = with_own_generation_config("Llama")
    of.model.generation_config.repetition_penalty = 1.7
    given = prompts(3)
    expected = [offline(of, prompt) for prompt in given]
    assert BatchEngine(of).generate(given, Sampling(max_tokens=NEW)) == expected
    assert expected != [offline(graph("Llama"), prompt) for prompt in given]


def test_a_seed_fixes_an_answer_whatever_else_is_in_the_batch():
    drawn = Sampling(max_tokens=NEW, temperature=1.5, top_p=0.9, seed=7)
    given = prompts(5)
    together = BatchEngine(graph("Llama")).generate(given, drawn)
    alone = [BatchEngine(graph("Llama")).generate([prompt], drawn)[0] for prompt in given]
    assert together == alone
    other = BatchEngine(graph("Llama")).generate(given, Sampling(NEW, 1.5, 0.9, seed=8))
    assert other != together
    narrow = Sampling(max_tokens=NEW, temperature=1.5, top_p=1e-6, seed=7)
    assert BatchEngine(graph("Llama")).generate(given, narrow) == [
        offline(graph("Llama"), prompt) for prompt in given
    ]


def test_logprobs_are_those_of_the_model():
    of, prompt, answer = graph("Llama"), prompts(1)[0], TokenList()
    engine = BatchEngine(of)
    engine.submit([Job(tuple(prompt), Sampling(max_tokens=4, logprobs=3), answer)])
    while engine.step():
        pass
    ids = [token.id for token in answer.tokens]
    with torch.no_grad():
        logits = of.model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    chances = logits.log_softmax(-1)
    for row, token in zip(chances, answer.tokens, strict=True):
        assert token.logprob == pytest.approx(float(row[token.id]), abs=1e-4)
        assert [i for i, _ in token.alternatives] == row.topk(3).indices.tolist()
        assert token.alternatives[0] == (token.id, token.logprob)


def test_an_answer_ends_at_the_end_token_and_at_a_stop_word():
    of, prompt = with_own_generation_config("Llama"), prompts(1)[0]
    third = offline(graph("Llama"), prompt)[2]
    of.model.generation_config.eos_token_id = [third]
    ended = TokenList()
    engine = BatchEngine(of)
    engine.submit([Job(tuple(prompt), Sampling(max_tokens=NEW), ended)])
    while engine.step():
        pass
    assert ended.reason == STOP and ended.tokens[-1].is_end and ended.tokens[-1].id == third
    assert [t.id for t in ended.tokens] == offline(of, prompt)

    class Stops(TokenList):
        def on_token(self, token):
            return super().on_token(token) or len(self.tokens) == 2

    stopped = Stops()
    engine.submit([Job(tuple(prompt), Sampling(max_tokens=NEW), stopped)])
    while engine.step():
        pass
    assert stopped.reason == STOP and len(stopped.tokens) == 2


def test_the_thread_answers_and_stops():
    engine = BatchEngine(graph("Llama"), EngineLimits(max_batch=2))
    given, answers = prompts(5), [TokenList() for _ in range(5)]
    engine.start()
    for prompt, answer in zip(given, answers, strict=True):
        engine.submit([Job(tuple(prompt), Sampling(max_tokens=NEW), answer)])
    engine.stop(patience_s=60)
    assert [[t.id for t in a.tokens] for a in answers] == [
        offline(graph("Llama"), p) for p in given
    ]
    assert {answer.reason for answer in answers} <= {LENGTH, STOP}
    with pytest.raises(StoppedError, match="the server is stopping"):
        engine.submit([Job((5,), Sampling(), TokenList())])


def test_an_impatient_stop_ends_every_answer():
    engine, answers = BatchEngine(graph("Llama")), [TokenList() for _ in range(12)]
    engine.submit([Job((5, 6), Sampling(max_tokens=100), answer) for answer in answers])
    engine.start()
    engine.stop()
    assert {answer.reason for answer in answers} == {CANCELLED}


def test_a_failing_model_tells_every_client_and_closes_the_engine(monkeypatch):
    engine, answers = BatchEngine(graph("Llama")), [TokenList(), TokenList()]
    monkeypatch.setattr(engine, "_logits", lambda *_: 1 / 0)
    engine.submit([Job((5,), Sampling(), answer) for answer in answers])
    engine.start()
    for answer in answers:
        assert answer.is_done.wait(60)
        assert isinstance(answer.error, GenerationError)
        assert "the engine failed: ZeroDivisionError" in str(answer.error)
    assert isinstance(engine.error, ZeroDivisionError) and not engine.is_open
    with pytest.raises(StoppedError):
        engine.submit([Job((5,), Sampling(), TokenList())])
    engine.stop()


REFUSED = {
    "the prompt has no tokens": ((), 4, RequestError),
    "the prompt has 120 tokens and the answer up to 9: together 129. Allowed: 128": (
        (5,) * 120, 9, ContextLengthError,
    ),
    "the prompt has token 96. Allowed: 0 to 95": ((5, 96), 4, RequestError),
    "the prompt has token -1": ((-1, 5), 4, RequestError),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_a_job_that_does_not_fit_is_refused(message):
    prompt, most, error = REFUSED[message]
    with pytest.raises(error, match=message):
        BatchEngine(graph("Llama")).submit([Job(prompt, Sampling(max_tokens=most), TokenList())])


def test_a_full_queue_refuses_all_jobs_of_a_request():
    engine = BatchEngine(graph("Llama"), EngineLimits(max_batch=1, max_queue=2))
    engine.submit([Job((5,), Sampling(), TokenList()) for _ in range(2)])
    with pytest.raises(QueueFullError, match=r"the queue is full: 0 answers run and 2 wait"):
        engine.submit([Job((5,), Sampling(), TokenList()) for _ in range(2)])
    assert engine.waiting == 2


def test_limits_and_graphs_are_checked():
    for name in ("max_batch", "max_queue", "max_length"):
        with pytest.raises(ConfigError, match=f"{name}: -1. Allowed"):
            EngineLimits(**{name: -1})
    with pytest.raises(ConfigError, match=r"max_length: 129. Allowed for this model: at most 128"):
        BatchEngine(graph("Llama"), EngineLimits(max_length=129))
    with pytest.raises(ConfigError, match="T5ForConditionalGeneration is an encoder-decoder"):
        BatchEngine(graph("T5"))
    with pytest.raises(ConfigError, match="was captured without its cache"):
        BatchEngine(MaseGraph(graph("Llama").original))
