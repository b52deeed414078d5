"""Continuous batching: sequences join and leave the batch between steps.

One thread runs the engine. Each step first reads the prompts of waiting jobs while there are
places, and then generates one token of every running job in one call of the captured graph.

The tokens of a greedy answer are those of `MaseGraph.generate` on the prompt alone: prompts are
read alone, with the same call, and a row of a native decode step has the bits of that row alone.
Where steps run in PyTorch, a row of a batched product may differ in the last bits, and two tokens
whose logits are that close may change places. `bench/serve.py` counts how often that happens.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from chop.errors import ConfigError
from chop.ir import kv_cache
from chop.ir.graph import MaseGraph
from chop.ir.graph.generating_model import has_cache
from chop.kernels.cache import formats_by_layer
from chop.kernels.cache_pages import PAGE, PagedSequence, PagePool, pages_for
from chop.kernels.row_codecs import FLOAT, FloatCodec, codec_of
from chop.log import get_logger
from chop.serve.batch_cache import BatchCache
from chop.serve.jobs import CANCELLED, LENGTH, STOP, Job, TokenList
from chop.serve.paged_batch import PagedBatch
from chop.serve.request_errors import (
    ContextLengthError,
    GenerationError,
    QueueFullError,
    RequestError,
    StoppedError,
)
from chop.serve.sampling import Sampler, Sampling
from chop.serve.server_metrics import ServerMetrics

DEFAULT_LENGTH = 2048
"""Tokens of prompt and answer, for a model whose config has no limit."""
LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
"""Names of the largest length in configs of transformers."""


@dataclass(frozen=True)
class EngineLimits:
    """Limits of an engine.

    `max_batch`: sequences that decode together. `max_queue`: jobs that wait for a place.
    `max_length`: tokens of a prompt with its answer; None takes the model's own limit.
    `max_cached_tokens`: tokens of all sequences that decode together, with those that they may
    still get; None has room for `max_batch` of the largest length.
    """

    max_batch: int = 8
    max_queue: int = 128
    max_length: int | None = None
    max_cached_tokens: int | None = None

    def __post_init__(self) -> None:
        least_values = {"max_batch": 1, "max_queue": 0, "max_length": 2, "max_cached_tokens": PAGE}
        for name, least in least_values.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name}: {value}. Allowed: {least} or more.")


class BatchEngine:
    """Engine that answers many prompts together with a graph captured with its cache.

    `cache`: number format of keys and values, or formats by layer. `start` runs it in a thread;
    `step` runs one step in the caller's thread.
    """

    def __init__(
        self,
        graph: MaseGraph,
        limits: EngineLimits | None = None,
        *,
        cache: str | Mapping[Any, Any] = FLOAT,
    ) -> None:
        _check_graph(graph)
        self.limits = limits or EngineLimits()
        self.max_length = _max_length(graph.model.config, self.limits.max_length)
        self.vocabulary = int(getattr(graph.model.config, "vocab_size", 2**31))
        self.metrics = ServerMetrics()
        self.error: BaseException | None = None
        self._model, self._cache_formats = graph.as_transformers(), cache
        self._inputs = set(graph.model.input_names)
        self._waiting: deque[Job] = deque()
        self._joining: list[Job] = []
        self._running: list[Job] = []
        self._batch: BatchCache | PagedBatch | None = None
        self._pool = self._made_pool()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> int:
        """Number of jobs in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of jobs in the queue, with one whose prompt is being read."""
        return len(self._waiting) + len(self._joining)

    def _present(self) -> list[Job]:
        return [*self._running, *self._joining, *self._waiting]

    @property
    def cached_tokens(self) -> int:
        """Tokens that the memory of the running sequences has room for."""
        batch = self._batch
        return 0 if batch is None else batch.tokens_of_memory

    @property
    def reserved_tokens(self) -> int:
        """Tokens that the running sequences have and may still get, in whole pages."""
        if self._pool is not None:
            return self._pool.reserved * PAGE
        return sum(map(_most_tokens, self._running))

    @property
    def max_cached_tokens(self) -> int:
        """Largest number of reserved tokens."""
        if self._pool is not None:
            return self._pool.limit * PAGE
        return self.limits.max_cached_tokens or self.limits.max_batch * self.max_length

    def _made_pool(self) -> PagePool | None:
        """Return a pool for keys and values; None where they are not in pages.

        They are as floats on the CPU. Other caches have a row for each sequence, as long as the
        longest.
        """
        model, config = self._model, self._model.config
        layers = len(DynamicCache(config=config).layers)
        formats = formats_by_layer(self._cache_formats, layers)
        is_float = all(isinstance(codec_of(form, "cache"), FloatCodec) for form in formats)
        if not is_float or model.device.type != "cpu" or model.dtype != torch.float32:
            return None
        most = self.limits.max_cached_tokens
        pages = self.limits.max_batch * pages_for(self.max_length)
        return PagePool(pages if most is None else most // PAGE, layers)

    def _has_room(self, job: Job) -> bool:
        if self._pool is not None:
            return self._pool.has_room(_most_tokens(job))
        return self.reserved_tokens + _most_tokens(job) <= self.max_cached_tokens

    @property
    def is_open(self) -> bool:
        """True while jobs are accepted."""
        return not self._is_stopping and self.error is None

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs, all or none; raise if one does not fit or the queue is full."""
        for job in jobs:
            self._check(job)
        with self._changed:
            if not self.is_open:
                raise StoppedError("the server is stopping. Send the request again later.")
            present = self.running + self.waiting
            if present + len(jobs) > self.limits.max_batch + self.limits.max_queue:
                raise QueueFullError(
                    f"the queue is full: {self.running} answers run and {self.waiting} wait. "
                    f"Allowed to wait: {self.limits.max_queue}. Send the request again later."
                )
            self._waiting.extend(jobs)
            self._changed.notify()

    def cancel(self, jobs: Iterable[Job]) -> None:
        """End jobs before the next step."""
        with self._changed:
            for job in jobs:
                job.is_cancelled = True
            self._changed.notify()

    def _check(self, job: Job) -> None:
        length, most = len(job.prompt), job.sampling.max_tokens
        if not length:
            raise RequestError("the prompt has no tokens. Give a text of at least one token.")
        if length + most > self.max_length:
            raise ContextLengthError(
                f"the prompt has {length} tokens and the answer up to {most}: together "
                f"{length + most}. Allowed: {self.max_length}."
            )
        if pages_for(length + most) * PAGE > self.max_cached_tokens:
            raise ContextLengthError(
                f"the prompt has {length} tokens and the answer up to {most}: together "
                f"{length + most}. The cache has room for {self.max_cached_tokens}, in pages of "
                f"{PAGE}. Give a shorter prompt or a smaller max_tokens."
            )
        largest, least = max(job.prompt), min(job.prompt)
        if not 0 <= least <= largest < self.vocabulary:
            wrong = least if least < 0 else largest
            raise RequestError(
                f"the prompt has token {wrong}. Allowed: 0 to {self.vocabulary - 1}."
            )

    # -- steps -------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Read waiting prompts while there are places, then generate a token of each running job.

        The reading of a prompt yields its first token. Return True if a job is left.
        """
        with torch.inference_mode():
            self._leave([job for job in self._running if job.is_cancelled], CANCELLED)
            while self._admit():
                pass
            self._decode()
        with self._changed:
            return bool(self._present())

    def _admit(self) -> bool:
        """Read the prompt of the first waiting job; return False if there is none, or no place."""
        job = self._next_job()
        if job is None:
            return False
        job.sampler = Sampler(self._model, job.prompt, job.sampling)
        cache = self._new_cache(job)
        logits = self._logits(torch.tensor([job.prompt]), cache)
        self.metrics.prompt_tokens.add(len(job.prompt))
        if self._batch is None:
            self._batch = cache
        else:
            self._batch.join(cache)
        with self._changed:
            self._running.append(job)
            self._joining.clear()
        self._advance([job], logits)
        return True

    def _new_cache(self, job: Job) -> Any:
        """Return the cache of one sequence."""
        if self._pool is None:
            return BatchCache(self._model.config, self._cache_formats)
        return PagedBatch(self._pool, [PagedSequence(self._pool, _most_tokens(job))])

    def _next_job(self) -> Job | None:
        with self._changed:
            while self._waiting and len(self._running) < self.limits.max_batch:
                if not self._waiting[0].is_cancelled and not self._has_room(self._waiting[0]):
                    return None  # in order: a long sequence is not overtaken for ever
                job = self._waiting.popleft()
                if not job.is_cancelled:
                    self._joining.append(job)
                    return job
                job.listener.on_end(CANCELLED)
        return None

    def _decode(self) -> None:
        if self._batch is None:
            return
        last = [job.sampler.tokens[-1] for job in self._running if job.sampler is not None]
        self.metrics.batch_size.observe(len(last))
        logits = self._logits(torch.tensor(last)[:, None], self._batch)
        self._advance(list(self._running), logits)

    def _logits(self, tokens: Tensor, cache: Any) -> Tensor:
        """Return the logits after the last of `tokens`, one row per sequence."""
        inputs = cache.inputs(tokens.to(self._model.device))
        output = self._model(**{k: v for k, v in inputs.items() if k in self._inputs})
        last: Tensor = output.logits[:, -1].float().cpu()
        return last

    def _advance(self, jobs: list[Job], logits: Tensor) -> None:
        """Choose the next token of each job and deliver it; finished jobs leave the batch."""
        done: dict[str, list[Job]] = {STOP: [], LENGTH: []}
        for job, row in zip(jobs, logits, strict=True):
            reason = self._deliver(job, row)
            if reason is not None:
                done[reason].append(job)
        for reason, finished in done.items():
            self._leave(finished, reason)

    def _deliver(self, job: Job, logits: Tensor) -> str | None:
        assert job.sampler is not None, "a running job has a sampler"
        token = job.sampler.choose(logits)
        now = time.monotonic()
        self.metrics.generated_tokens.add()
        if job.first_token is None:
            job.first_token = now
            self.metrics.first_token_seconds.observe(now - job.submitted)
        if job.listener.on_token(token) or token.is_end:
            return STOP
        return LENGTH if len(job.sampler.tokens) >= job.sampling.max_tokens else None

    def _leave(self, jobs: Sequence[Job], reason: str) -> None:
        """Remove jobs from the batch and tell their listeners."""
        if not jobs:
            return
        rows = [row for row, job in enumerate(self._running) if job not in jobs]
        self._running = [self._running[row] for row in rows]
        assert self._batch is not None, "running jobs have a cache"
        self._batch.keep(rows)
        if not rows:
            self._batch = None
        for job in jobs:
            self.metrics.answers.add(reason=reason)
            self.metrics.answer_seconds.observe(time.monotonic() - job.submitted)
            job.listener.on_end(reason)

    # -- thread ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run steps in a thread until `stop`."""
        self._thread = threading.Thread(target=self._run, name="batch-engine", daemon=True)
        self._thread.start()

    def stop(self, patience_s: float = 0.0) -> None:
        """Accept no more jobs, wait up to `patience_s` for those present, and end the rest."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
            self._changed.wait_for(lambda: not self._present(), patience_s)
            jobs = self._present()
        self.cancel(jobs)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._is_needed():
                self.step()
                with self._changed:
                    self._changed.notify_all()
        except Exception as error:  # of the model: every client is told, and the engine ends
            get_logger(__name__).exception("the engine failed; it accepts no more requests")
            self._fail(error)

    def _is_needed(self) -> bool:
        """Wait for a job; return False when the engine stops and none is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._present())
            return bool(self._present())

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self.error = error
            jobs = self._present()
            self._running, self._joining, self._batch = [], [], None
            self._pool = self._made_pool()
            self._waiting.clear()
            self._changed.notify_all()
        for job in jobs:
            cause = GenerationError(f"the engine failed: {type(error).__name__}: {error}.")
            job.listener.on_end(STOP, cause)

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]]:
        """Return the tokens of answers, computed together in the caller's thread."""
        answers = [TokenList() for _ in prompts]
        pairs = zip(prompts, answers, strict=True)
        self.submit([Job(tuple(prompt), sampling, answer) for prompt, answer in pairs])
        while self.step():
            pass
        return [[token.id for token in answer.tokens] for answer in answers]


def _most_tokens(job: Job) -> int:
    """Return the tokens of the prompt and of the longest answer."""
    return len(job.prompt) + job.sampling.max_tokens


def _check_graph(graph: MaseGraph) -> None:
    if getattr(graph.model.config, "is_encoder_decoder", False):
        raise ConfigError(
            f"{type(graph.model).__name__} is an encoder-decoder. The engine takes causal language "
            "models, such as LlamaForCausalLM."
        )
    if not has_cache(graph.model):
        raise ConfigError(
            f"the graph of {type(graph.model).__name__} was captured without its cache. Capture it "
            "with MaseGraph(model, cache=True)."
        )
    if others := kv_cache.other_states(graph.model.config):
        raise ConfigError(
            f"layer {others[0]} of {type(graph.model).__name__} keeps a state of a convolution, "
            "and batches hold keys and values only. Use generate."
        )


def _max_length(config: Any, limit: int | None) -> int:
    fields = (getattr(config, name, None) for name in LENGTH_FIELDS)
    own = next((value for value in fields if isinstance(value, int)), None)
    if own is not None and limit is not None and limit > own:
        raise ConfigError(f"max_length: {limit}. Allowed for this model: at most {own}.")
    return limit or own or DEFAULT_LENGTH
