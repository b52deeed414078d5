"""Text generation, with its speed and its memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import CompileConfig, DynamicCache, EncoderDecoderCache

from chop.ir.graph import MaseGraph
from chop.kernels.cache import PackedCache

FLOAT_CACHE = "float"


@dataclass(frozen=True)
class Generated:
    """One run of `generate`.

    `first_s`: seconds to the first token, with the prompt. `tokens_per_s`: rate after it.
    `cache_bytes`: size of keys and values at the end. `capacity`: tokens that fit, relative to a
    16-bit cache; None for a cache of transformers.
    """

    tokens: Tensor
    new_tokens: int
    first_s: float
    tokens_per_s: float
    weight_bytes: int
    cache_bytes: int
    capacity: float | None

    def record(self) -> dict[str, Any]:
        """Return the numbers, without the tokens."""
        return {k: v for k, v in vars(self).items() if k != "tokens"}


@dataclass
class _Clock:
    """Streamer that records the time of each token and forwards it."""

    inner: Any = None
    times: list[float] = field(default_factory=list)

    def put(self, value: Tensor) -> None:
        """Record the time; the first call receives the prompt."""
        self.times.append(time.perf_counter())
        if self.inner is not None:
            self.inner.put(value)

    def end(self) -> None:
        """Forward the end."""
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
    """Generate text with a graph that has a cache; `options`: those of transformers' `generate`.

    `cache`: a format, or formats by layer (`PackedCache`). `compile`: run a static cache of floats
    through torch.compile, also on the CPU.
    """
    past = None if compile else _past(graph, cache)
    more: dict[str, Any] = {"past_key_values": past}
    if compile:
        config: Any = CompileConfig(mode="default", fullgraph=True)
        config._compile_all_devices = True
        more = {"cache_implementation": "static", "compile_config": config}
    clock = _Clock(streamer)
    listens = {} if options.get("num_beams", 1) > 1 else {"streamer": clock}
    start = time.perf_counter()
    arguments: dict[str, Any] = {**inputs, **options, **more, **listens}
    result = graph.generate(**arguments, return_dict_in_generate=True)
    end = time.perf_counter()
    tokens = result.sequences
    new = tokens.shape[1] - (0 if _is_pair(graph) else inputs["input_ids"].shape[1])
    first = (clock.times[1] if len(clock.times) > 1 else end) - start
    rate = (new - 1) / (end - start - first) if new > 1 and listens else new / (end - start)
    return Generated(
        tokens,
        new,
        first,
        rate,
        bytes_of(graph),
        cache_bytes(result.past_key_values),
        past.capacity() if isinstance(past, PackedCache) else None,
    )


def _is_pair(graph: MaseGraph) -> bool:
    return bool(getattr(graph.model.config, "is_encoder_decoder", False))


def _past(graph: MaseGraph, cache: str | Mapping[Any, Any]) -> Any:
    if cache == FLOAT_CACHE:
        return None if _is_pair(graph) else DynamicCache(config=graph.model.config)  # type: ignore[arg-type]
    if _is_pair(graph):
        own = [PackedCache(graph.model.config, cache) for _ in range(2)]
        return EncoderDecoderCache(*own)
    return PackedCache(graph.model.config, cache)


def bytes_of(graph: MaseGraph) -> int:
    """Return the bytes of parameters and buffers; shared tensors count once."""
    tensors = {id(t): t for t in (*graph.model.parameters(), *graph.model.buffers())}
    return sum(t.nbytes for t in tensors.values())


def cache_bytes(past: Any) -> int:
    """Return the bytes of the keys and values in a cache."""
    parts = [
        getattr(past, name, None) for name in ("self_attention_cache", "cross_attention_cache")
    ]
    if parts[0] is not None:
        return sum(cache_bytes(part) for part in parts)
    if isinstance(past, PackedCache):
        return past.nbytes
    layers = getattr(past, "layers", ())
    return sum(t.nbytes for layer in layers for t in (layer.keys, layer.values) if t is not None)
