"""Weights and bias of a layer: their codes, the range of its sums, and the order of the beats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.design.component import Memory, Parameter, precision
from chop.hw.design.samples import BYTE, codes, in_tensors, matched_ends
from chop.hw.design.stream import Stream, pack_words

NO_BIAS = Fixed(2, 0)
"""What the parameters of an unused bias port say."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Codes of a weight matrix (outputs, inputs) and, where there is one, a bias (outputs,)."""

    weight: Ints
    weight_format: Fixed
    bias: Ints | None = None
    bias_format: Fixed = NO_BIAS

    def parameters(self) -> dict[str, Parameter]:
        """The parameters that speak of weight and bias."""
        return {
            **precision("WEIGHT", self.weight_format),
            "HAS_BIAS": self.bias is not None,
            **precision("BIAS", self.bias_format),
        }

    def frac(self, data: Fixed) -> int:
        """Fractional bits of the accumulator."""
        product = data.frac_width + self.weight_format.frac_width
        return product if self.bias is None else max(product, self.bias_format.frac_width)

    def accumulate(self, x: Ints, data: Fixed) -> Any:
        """Exact sums for vectors `x` (…, inputs), with `frac(data)` fractional bits."""
        frac = self.frac(data)
        vectors = golden.wide(x, self.acc_width(data, frac))
        shift = frac - data.frac_width - self.weight_format.frac_width
        sums = (vectors @ self.weight.T.astype(vectors.dtype)) << shift
        return sums if self.bias is None else sums + self._bias(frac)

    def _bias(self, frac: int) -> Any:
        """The bias in steps of the accumulator."""
        if self.bias is None:
            return np.zeros(1, dtype=np.int64)
        shift = frac - self.bias_format.frac_width
        return golden.wide(self.bias, self.bias_format.signed_width + shift) << shift

    def span(self, data: Fixed) -> Span:
        """The codes that exact sums may have, whatever the data: from the real weights."""
        frac = self.frac(data)
        shift = frac - data.frac_width - self.weight_format.frac_width
        bits = data.signed_width + self.weight_format.signed_width + shift
        weight = golden.wide(self.weight, bits + self.weight.shape[1].bit_length() + 1)
        corners = (weight * data.low, weight * data.high)
        low = (np.minimum(*corners).sum(axis=1) << shift) + self._bias(frac)
        high = (np.maximum(*corners).sum(axis=1) << shift) + self._bias(frac)
        return Span(int(low.min()), int(high.max()), frac)

    def acc_span(self, data: Fixed, out: Fixed) -> Span:
        """Return the exact range of the accumulator: sums, with half a step where one is added."""
        exact = self.span(data)
        return with_half(exact, out)

    def ends(self, source: Stream) -> Ints:
        """Return tensors that drive the sums of some outputs to both ends of their range."""
        frac = self.frac(source.format)
        shift = frac - source.format.frac_width - self.weight_format.frac_width
        starts = self._bias(frac) >> shift  # of the order of rows alone: rounding does no harm
        return in_tensors(matched_ends(self.weight, starts, source.format), source)

    def acc_width(self, data: Fixed, out_frac: int) -> int:
        """Bits that hold every partial sum of the accumulator: from the range of the weights."""
        frac = self.frac(data)
        shift = frac - data.frac_width - self.weight_format.frac_width
        start = 1 << (frac - out_frac - 1) if frac > out_frac else 0  # half a step rides in
        bias = max(abs(int(b)) for b in self._bias(frac))
        rows = np.abs(self.weight).sum(axis=1)  # below 2**62: a weight has 32 bits
        reach = int(rows.max()) * max(-data.low, data.high) << shift
        return max((reach + bias + start).bit_length() + 1, 3)

    def external(self) -> ExternalWeights:
        """The same, from outside."""
        return ExternalWeights(self.weight, self.weight_format, self.bias, self.bias_format)

    def tiles(self, in_lanes: int, out_lanes: int) -> Ints:
        """The weights in the order of the beats: (output folds, input folds, lanes of a beat)."""
        outputs, inputs = self.weight.shape
        tiles = self.weight.reshape(outputs // out_lanes, out_lanes, inputs // in_lanes, in_lanes)
        return tiles.transpose(0, 2, 1, 3).reshape(*tiles.shape[::2], out_lanes * in_lanes)

    def memories(self, in_lanes: int, out_lanes: int) -> tuple[Memory, ...]:
        """Weight words by output fold, then input fold; bias words by output fold."""
        rows = self.tiles(in_lanes, out_lanes).reshape(-1, in_lanes * out_lanes)
        width = self.weight_format.width
        words = tuple(pack_words(rows, width))
        return (Memory("weight", words, width * rows.shape[1]), *self.bias_memories(out_lanes))

    def memory_bits(self) -> int:
        """Of all memories."""
        return self.weight.size * self.weight_format.width + self._bias_bits()

    def _bias_bits(self) -> int:
        return 0 if self.bias is None else self.bias.size * self.bias_format.width

    def bias_memories(self, out_lanes: int) -> tuple[Memory, ...]:
        """Bias words by output fold; none where there is no bias."""
        if self.bias is None:
            return ()
        width = self.bias_format.width
        words = pack_words(self.bias.reshape(-1, out_lanes), width)
        return (Memory("bias", tuple(words), width * out_lanes),)


@dataclass(frozen=True, eq=False)
class ExternalWeights(Weights):
    """Weights that come from outside while the layer computes; the bias stays in the design.

    `weight` is what the model has and the outside sends. The hardware takes any codes of the
    format, so that the widths of sums come from the format.
    """

    def span(self, data: Fixed) -> Span:
        inputs, frac = self.weight.shape[1], self.frac(data)
        shift = frac - data.frac_width - self.weight_format.frac_width
        number = self.weight_format
        ends = [a * b for a in (data.low, data.high) for b in (number.low, number.high)]
        bias = [int(b) for b in self._bias(frac)]
        low = (min(ends) * inputs << shift) + min(bias)
        return Span(low, (max(ends) * inputs << shift) + max(bias), frac)

    def acc_width(self, data: Fixed, out_frac: int) -> int:
        exact = self.span(data)
        start = 1 << (exact.frac_width - out_frac - 1) if exact.frac_width > out_frac else 0
        return max((max(-exact.low, exact.high) + start).bit_length() + 1, 3)

    def memories(self, in_lanes: int, out_lanes: int) -> tuple[Memory, ...]:
        return self.bias_memories(out_lanes)

    def memory_bits(self) -> int:
        return self._bias_bits()

    def stream(self, vectors: int, in_lanes: int, out_lanes: int) -> Stream:
        """What the outside sends for a tensor of so many vectors: all weights for each of them."""
        beats = self.tiles(in_lanes, out_lanes).shape
        return Stream((vectors, *beats), beats[-1], self.weight_format)

    def given(self, beats: Ints, in_lanes: int) -> Ints:
        """Matrices (…, outputs, inputs) of beats (…, output folds, input folds, lanes)."""
        split = beats.reshape(*beats.shape[:-1], -1, in_lanes)
        return np.swapaxes(split, -3, -2).reshape(*beats.shape[:-3], *self.weight.shape)

    def accumulate_given(self, x: Ints, beats: Ints, data: Fixed, in_lanes: int) -> Any:
        """Exact sums for vectors `x` (tensors, vectors, inputs), each with weights of its own."""
        frac = self.frac(data)
        shift = frac - data.frac_width - self.weight_format.frac_width
        is_repeated = not any(beats.strides[:2])  # the same for all: one product
        matrices = self.given(beats[0, 0] if is_repeated else beats, in_lanes)
        vectors = golden.wide(x, self.acc_width(data, frac))
        matrices = matrices.astype(vectors.dtype)
        sums = vectors @ matrices.T if is_repeated else (matrices @ vectors[..., None])[..., 0]
        return (sums << shift) if self.bias is None else (sums << shift) + self._bias(frac)


def with_half(exact: Span, out: Fixed) -> Span:
    """Return `exact` with half a step of `out` added, where that is how results are rounded."""
    dropped = exact.frac_width - out.frac_width
    half = 1 << (dropped - 1) if dropped > 0 and out.rounding == "nearest_even" else 0
    return exact._replace(low=exact.low + half, high=exact.high + half)


def sample_weights(
    outputs: int, inputs: int, weight: Fixed = BYTE, bias: Fixed | None = BYTE
) -> Weights:
    """Weights to test with."""
    matrix = codes(weight, outputs, inputs)
    if bias is None:
        return Weights(matrix, weight)
    return Weights(matrix, weight, codes(bias, outputs, seed=8), bias)
