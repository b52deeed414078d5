"""Cycles per token of a model of which only the shape is known.

The cycle model runs three small models: one layer, two layers, and a larger vocabulary. Cycles grow
linearly with the layers and with the vocabulary, except for the phase of memory refreshes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from chop.hw.decode.decode_cycles import predict_cycles
from chop.hw.decode.decode_emit import EngineOptions, design_engine
from chop.hw.decode.decode_model import DecodeOptions
from chop.hw.decode.decode_shape import shape_model
from chop.hw.decode.decode_sim import DecodeRequest
from chop.hw.decode.llama_weights import LlamaShape
from chop.hw.decode.memory_timing import BANDWIDTH_ONE, MemoryTiming

SMALL_VOCAB = 2048
"""Vocabulary of the small models."""


@dataclass(frozen=True)
class TokenEstimate:
    """Cycles and beats of memory of one token, at the start of the cache."""

    cycles: float
    beats: float

    def tokens_per_second(self, mhz: float) -> float:
        """Return the rate at a clock."""
        return mhz * 1e6 / self.cycles

    def bandwidth_share(self, timing: MemoryTiming) -> float:
        """Return the beats as a share of those that the memory can move in the same cycles."""
        return self.beats * BANDWIDTH_ONE / timing.bandwidth / self.cycles


def estimate_token(
    shape: LlamaShape, formats: DecodeOptions, engine: EngineOptions, timing: MemoryTiming
) -> TokenEstimate:
    """Return cycles and beats of a token of a model with `shape`."""

    def small(layers: int, vocab: int) -> tuple[int, int]:
        model = shape_model(replace(shape, layers=layers, vocab=vocab), formats)
        design = design_engine(model, engine, is_filled=False)
        run = predict_cycles(design, [DecodeRequest((0,), 1)], [[0]], timing)
        return run.cycles, run.read_beats + run.written_beats

    base, deep, broad = small(1, SMALL_VOCAB), small(2, SMALL_VOCAB), small(1, 2 * SMALL_VOCAB)
    layers, vocab = shape.layers - 1, shape.vocab / SMALL_VOCAB - 1
    return TokenEstimate(
        *(b + (d - b) * layers + (v - b) * vocab for b, d, v in zip(base, deep, broad, strict=True))
    )
