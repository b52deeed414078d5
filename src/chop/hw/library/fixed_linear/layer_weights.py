"""Weights and bias of a layer: their codes, the range of its sums, and the order of the beats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.arith.mxint_wire import Mxint, of_format, of_values
from chop.hw.design.component import Memory, Parameter, precision
from chop.hw.design.samples import BYTE, codes, in_tensors, matched_ends
from chop.hw.design.stream import Stream, pack_words
from chop.hw.lower.mxint_values import doubles
from chop.nn.quantizers.mxint import MXInt

NO_BIAS = Fixed(2, 0)
"""Format in the parameters of an unused bias port."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Codes of a weight matrix (outputs, inputs) and of an optional bias (outputs,).

    The weights are fixed point, or MXINT in blocks along the inputs. The bias is fixed point.
    """

    weight: Ints
    weight_format: Fixed
    bias: Ints | None = None
    bias_format: Fixed = NO_BIAS

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters of the weight and bias ports."""
        return {
            **precision("WEIGHT", self.weight_format),
            "HAS_BIAS": self.bias is not None,
            **precision("BIAS", self.bias_format),
        }

    def frac(self, data: Fixed) -> int:
        """Return the fractional bits of the accumulator."""
        product = data.frac_width + self.weight_format.frac_width
        return product if self.bias is None else max(product, self.bias_format.frac_width)

    def _shift(self, data: Fixed) -> int:
        """Return the fractional bits that the accumulator has beyond those of a product."""
        return self.frac(data) - data.frac_width - self.weight_format.frac_width

    def accumulate(self, x: Ints, data: Fixed) -> Any:
        """Return the exact sums of vectors `x` (…, inputs), with `frac(data)` fractional bits."""
        vectors = golden.wide(x, self.acc_width(data, self.frac(data)))
        return self._with_bias(vectors @ self.weight.T.astype(vectors.dtype), data)

    def _with_bias(self, products: Any, data: Fixed) -> Any:
        sums = products << self._shift(data)
        return sums if self.bias is None else sums + self._bias(self.frac(data))

    def _bias(self, frac: int) -> Any:
        """Return the bias in steps of the accumulator."""
        if self.bias is None:
            return np.zeros(1, dtype=np.int64)
        shift = frac - self.bias_format.frac_width
        return golden.wide(self.bias, self.bias_format.signed_width + shift) << shift

    def span(self, data: Fixed) -> Span:
        """Return the range of the exact sums of these weights, for any data."""
        frac, shift = self.frac(data), self._shift(data)
        bits = data.signed_width + self.weight_format.signed_width + shift
        weight = golden.wide(self.weight, bits + self.weight.shape[1].bit_length() + 1)
        corners = (weight * data.low, weight * data.high)
        low = (np.minimum(*corners).sum(axis=1) << shift) + self._bias(frac)
        high = (np.maximum(*corners).sum(axis=1) << shift) + self._bias(frac)
        return Span(int(low.min()), int(high.max()), frac)

    def acc_span(self, data: Fixed, out: Fixed) -> Span:
        """Return the exact range of the accumulator: sums, with half a step where one is added."""
        return with_half(self.span(data), out)

    def ends(self, source: Stream) -> Ints:
        """Return tensors that drive the sums of some outputs to both ends of their range."""
        starts = self._bias(self.frac(source.format)) >> self._shift(source.format)
        # The starts only order the rows, so their rounding does no harm.
        return in_tensors(matched_ends(self.weight, starts, source.format), source)

    def acc_width(self, data: Fixed, out_frac: int) -> int:
        """Return the bits that hold every partial sum of the accumulator."""
        dropped = self.frac(data) - out_frac
        return acc_bits(self._reach(data), dropped)

    def _reach(self, data: Fixed) -> int:
        """Return a bound of the magnitude of partial sums: that of the worst row and the bias."""
        bias = max(abs(int(b)) for b in self._bias(self.frac(data)))
        rows = np.abs(self.weight).sum(axis=1)  # below 2**62: a weight has at most 48 bits
        return (int(rows.max()) * max(-data.low, data.high) << self._shift(data)) + bias

    def external(self) -> ExternalWeights:
        """Return the same weights, streamed from outside."""
        return ExternalWeights(self.weight, self.weight_format, self.bias, self.bias_format)

    def tiles(self, in_lanes: int, out_lanes: int) -> Ints:
        """Return the weights in the order of the beats: (output folds, input folds, lanes)."""
        outputs, inputs = self.weight.shape
        tiles = self.weight.reshape(outputs // out_lanes, out_lanes, inputs // in_lanes, in_lanes)
        return tiles.transpose(0, 2, 1, 3).reshape(*tiles.shape[::2], out_lanes * in_lanes)

    def memories(self, in_lanes: int, out_lanes: int) -> tuple[Memory, ...]:
        """Return weight words by output fold, then input fold; bias words by output fold.

        In MXINT the exponent of a block is above the mantissas of each output lane.
        """
        rows, width = self.tiles(in_lanes, out_lanes), self.weight_format.width
        if self.weight_format.shared_width:
            beats = Stream(self.weight.shape, in_lanes, self.weight_format)
            words = np.array(beats.words(self.weight), dtype=object)
            rows = words.reshape(-1, out_lanes, rows.shape[1]).transpose(0, 2, 1)
            width = beats.beat_width
        packed = tuple(pack_words(rows.reshape(-1, rows.shape[-1]), width))
        return (Memory("weight", packed, width * rows.shape[-1]), *self.bias_memories(out_lanes))

    def weight_bits(self, in_lanes: int) -> int:
        """Return the bits of the weight memory, without packing its words."""
        size, number = self.weight.size, self.weight_format
        return size * number.lane_width + size // in_lanes * number.shared_width

    def memory_bits(self, in_lanes: int) -> int:
        """Return the bits of all memories, without packing their words."""
        return self.weight_bits(in_lanes) + self._bias_bits()

    def _bias_bits(self) -> int:
        return 0 if self.bias is None else self.bias.size * self.bias_format.width

    def bias_memories(self, out_lanes: int) -> tuple[Memory, ...]:
        """Return the bias words by output fold; nothing if there is no bias."""
        if self.bias is None:
            return ()
        width = self.bias_format.width
        words = pack_words(self.bias.reshape(-1, out_lanes), width)
        return (Memory("bias", tuple(words), width * out_lanes),)


@dataclass(frozen=True, eq=False)
class BlockWeights(Weights):
    """Weights in MXINT."""

    @property
    def wire(self) -> Mxint:
        """Format of the weights of one output in memory."""
        assert isinstance(self.weight_format, Mxint), self.weight_format
        return self.weight_format


@dataclass(frozen=True, eq=False)
class ExternalWeights(Weights):
    """Weights that are streamed from outside at run time; the bias stays in the design.

    `weight` holds the weights of the model, which the outside sends. The hardware accepts any codes
    of the format, so the widths of sums come from the format.
    """

    def span(self, data: Fixed) -> Span:
        inputs, frac, shift = self.weight.shape[1], self.frac(data), self._shift(data)
        number = self.weight_format
        ends = [a * b for a in (data.low, data.high) for b in (number.low, number.high)]
        bias = [int(b) for b in self._bias(frac)]
        low = (min(ends) * inputs << shift) + min(bias)
        return Span(low, (max(ends) * inputs << shift) + max(bias), frac)

    def _reach(self, data: Fixed) -> int:
        exact = self.span(data)
        return max(-exact.low, exact.high)

    def memories(self, in_lanes: int, out_lanes: int) -> tuple[Memory, ...]:
        return self.bias_memories(out_lanes)

    def memory_bits(self, in_lanes: int) -> int:
        return self._bias_bits()

    def stream(self, vectors: int, in_lanes: int, out_lanes: int) -> Stream:
        """Return the stream of weights for a tensor: all weights once per vector."""
        beats = self.tiles(in_lanes, out_lanes).shape
        return Stream((vectors, *beats), beats[-1], self.weight_format)

    def matrices(self, beats: Ints, in_lanes: int) -> Ints:
        """Return matrices (…, outputs, inputs) from beats (…, output folds, input folds, lanes)."""
        split = beats.reshape(*beats.shape[:-1], -1, in_lanes)
        return np.swapaxes(split, -3, -2).reshape(*beats.shape[:-3], *self.weight.shape)

    def accumulate_given(self, x: Ints, beats: Ints, data: Fixed, in_lanes: int) -> Any:
        """Return the exact sums of vectors `x` (tensors, vectors, inputs), each with its beats."""
        is_repeated = not any(beats.strides[:2])  # the same for all: one product
        matrices = self.matrices(beats[0, 0] if is_repeated else beats, in_lanes)
        vectors = golden.wide(x, self.acc_width(data, self.frac(data)))
        matrices = matrices.astype(vectors.dtype)
        products = vectors @ matrices.T if is_repeated else (matrices @ vectors[..., None])[..., 0]
        return self._with_bias(products, data)


def acc_bits(reach: int, dropped: int) -> int:
    """Return the bits of an accumulator of magnitudes up to `reach`; the cast drops `dropped`."""
    half = 1 << (dropped - 1) if dropped > 0 else 0  # half an output step is added at the start
    return max((reach + half).bit_length() + 1, 3)


def with_half(exact: Span, out: Fixed) -> Span:
    """Return `exact` with half a step of `out` added, where that is how results are rounded."""
    dropped = exact.frac_width - out.frac_width
    half = 1 << (dropped - 1) if dropped > 0 and out.rounding == "nearest_even" else 0
    return exact._replace(low=exact.low + half, high=exact.high + half)


@dataclass(frozen=True, eq=False)
class ReloadedWeights(Weights):
    """Weights that can be replaced at run time.

    The hardware accepts any codes of the formats, so the widths of sums come from the formats.
    """

    def span(self, data: Fixed) -> Span:
        inputs, shift = self.weight.shape[1], self._shift(data)
        number, bias = self.weight_format, self.bias_format
        ends = [a * b for a in (data.low, data.high) for b in (number.low, number.high)]
        low, high = (inputs * end << shift for end in (min(ends), max(ends)))
        if self.bias is not None:
            up = self.frac(data) - bias.frac_width
            low, high = low + (bias.low << up), high + (bias.high << up)
        return Span(low, high, self.frac(data))

    def _reach(self, data: Fixed) -> int:
        exact = self.span(data)
        return max(-exact.low, exact.high)


@dataclass(frozen=True, eq=False)
class ReloadedBlockWeights(BlockWeights, ReloadedWeights):
    """Weights in MXINT that can be replaced at run time, with any exponents of the format."""

    @classmethod
    def of(
        cls,
        number: MXInt,
        weight: npt.NDArray[np.float64],
        bias_number: MXInt | None = None,
        bias: npt.NDArray[np.float64] | None = None,
    ) -> Self:
        """Quantise a matrix (outputs, inputs) and a bias, and return them in any-value formats."""
        wire = of_format(number, weight.shape[1])
        matrix = _format_codes(number, wire, weight)
        if bias is None or bias_number is None:
            return cls(matrix, wire)
        wide = of_format(bias_number, len(bias))
        return cls(
            matrix,
            wire,
            _format_codes(bias_number, wide, bias),
            Fixed(wide.width, wide.frac_width),
        )


def _format_codes(number: MXInt, wire: Mxint, values: npt.NDArray[np.float64]) -> Ints:
    quantized = number.quantize(doubles(values)).numpy()
    return np.ldexp(quantized, wire.frac_width).astype(np.int64)  # type: ignore[no-any-return]


def weight_codes(number: MXInt, values: npt.NDArray[np.float64]) -> tuple[Mxint, Ints]:
    """Quantise a matrix (outputs, inputs) to `number`; return its wire format and its codes."""
    return of_values(number, number.quantize(doubles(values)).numpy(), values.shape[1])


def bias_codes(number: MXInt, values: npt.NDArray[np.float64]) -> tuple[Fixed, Ints]:
    """Quantise a bias to `number`; return the fixed-point format of its values and their codes."""
    wire, vector = of_values(number, number.quantize(doubles(values)).numpy(), len(values))
    low, high = int(vector.min()), int(vector.max())
    return Span(min(low, 0), max(high, 0), wire.frac_width).format, vector


def sample_weights(
    outputs: int, inputs: int, weight: Fixed = BYTE, bias: Fixed | None = BYTE
) -> Weights:
    """Return fixed-point weights to test with."""
    return Weights(codes(weight, outputs, inputs), weight, *_sample_bias(outputs, bias))


def sample_blocks(
    outputs: int, inputs: int, number: MXInt, bias: Fixed | None = BYTE
) -> BlockWeights:
    """Return weights in MXINT to test with, of various exponents."""
    rng = np.random.default_rng(7)
    spread = 2.0 ** rng.integers(-6, 2, (outputs, inputs))
    wire, matrix = weight_codes(number, rng.normal(0, 1, (outputs, inputs)) * spread)
    return BlockWeights(matrix, wire, *_sample_bias(outputs, bias))


def _sample_bias(outputs: int, bias: Fixed | None) -> tuple[Ints | None, Fixed]:
    return (None, NO_BIAS) if bias is None else (codes(bias, outputs, seed=8), bias)
