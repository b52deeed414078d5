"""A text from a prompt, with what it took: tokens per second, bytes of weights and of the cache."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import CompileConfig, DynamicCache

from chop.ir.graph import MaseGraph
from chop.kernels.cache import PackedCache

FLOAT_CACHE = "float"


@dataclass(frozen=True)
class Generated:
    """One run of `generate`.

    `first_s`: seconds to the first token, the prompt's run included. `tokens_per_s`: of the tokens
    after it. `cache_bytes`: keys and values at the end, measured. `capacity`: how many times as
    many tokens fit as in 16 bits; None where the cache is one of transformers'.
    """

    tokens: Tensor
    new_tokens: int
    first_s: float
    tokens_per_s: float
    weight_bytes: int
    cache_bytes: int
    capacity: float | None

    def record(self) -> dict[str, Any]:
        """The numbers alone."""
        return {k: v for k, v in vars(self).items() if k != "tokens"}


@dataclass
class _Clock:
    """A streamer that notes when tokens come, and hands them on."""

    inner: Any = None
    times: list[float] = field(default_factory=list)

    def put(self, value: Tensor) -> None:
        """Note the time; the first call brings the prompt."""
        self.times.append(time.perf_counter())
        if self.inner is not None:
            self.inner.put(value)

    def end(self) -> None:
        """Hand it on."""
        if self.inner is not None:
            self.inner.end()


def generate(
    graph: MaseGraph,
    inputs: Mapping[str, Tensor],
    *,
    cache: str | Mapping[Any, Any] = FLOAT_CACHE,
    compile: bool = False,
    streamer: Any = None,
    **options: Any,
) -> Generated:
    """Let a graph with a cache write on; `options` are those of transformers' `generate`.

    `cache` is a format, or formats by layer (`PackedCache`); with `compile` a static cache of
    floats runs through torch.compile, on the CPU too.
    """
    past = _past(graph, cache, compile)
    more = _compiled() if compile else {"past_key_values": past}
    clock = _Clock(streamer)
    listens = {} if options.get("num_beams", 1) > 1 else {"streamer": clock}
    start = time.perf_counter()
    result = graph.generate(**inputs, **options, **more, **listens, return_dict_in_generate=True)
    end = time.perf_counter()
    tokens = result.sequences
    new = tokens.shape[1] - (0 if _is_pair(graph) else inputs["input_ids"].shape[1])
    first = (clock.times[1] if len(clock.times) > 1 else end) - start
    rate = (new - 1) / (end - start - first) if new > 1 and listens else new / (end - start)
    kept = result.past_key_values
    return Generated(
        tokens,
        new,
        first,
        rate,
        bytes_of(graph),
        cache_bytes(kept),
        past.capacity() if isinstance(past, PackedCache) else None,
    )


def _is_pair(graph: MaseGraph) -> bool:
    return bool(getattr(graph.model.config, "is_encoder_decoder", False))


def _past(graph: MaseGraph, cache: str | Mapping[Any, Any], compile: bool) -> Any:
    if compile:
        return None
    if cache == FLOAT_CACHE:
        return None if _is_pair(graph) else DynamicCache(config=graph.model.config)  # type: ignore[arg-type]
    if _is_pair(graph):
        from transformers import EncoderDecoderCache

        own = [PackedCache(graph.model.config, cache) for _ in range(2)]
        return EncoderDecoderCache(*own)
    return PackedCache(graph.model.config, cache)


def _compiled() -> dict[str, Any]:
    config: Any = CompileConfig(mode="default", fullgraph=True)
    config._compile_all_devices = True
    return {"cache_implementation": "static", "compile_config": config}


def bytes_of(graph: MaseGraph) -> int:
    """Bytes of parameters and buffers; shared ones count once."""
    tensors = {id(t): t for t in (*graph.model.parameters(), *graph.model.buffers())}
    return sum(t.nbytes for t in tensors.values())


def cache_bytes(past: Any) -> int:
    """Bytes of the keys and values of a cache, as it keeps them."""
    parts = [
        getattr(past, name, None) for name in ("self_attention_cache", "cross_attention_cache")
    ]
    if parts[0] is not None:
        return sum(cache_bytes(part) for part in parts)
    if isinstance(past, PackedCache):
        return past.nbytes
    layers = getattr(past, "layers", ())
    return sum(t.nbytes for layer in layers for t in (layer.keys, layer.values) if t is not None)
