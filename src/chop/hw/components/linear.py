"""The folded matrix-vector product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from chop.errors import ConfigError
from chop.hw import golden, twin
from chop.hw.component import (
    Component,
    Cost,
    Memory,
    Parameter,
    precision,
    register,
    result_precision,
)
from chop.hw.golden import Fixed, Ints, Span
from chop.hw.stream import Stream, pack_words

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

    def acc_width(self, data: Fixed, out_frac: int) -> int:
        """Bits that hold every partial sum of the accumulator: from the range of the weights."""
        frac = self.frac(data)
        shift = frac - data.frac_width - self.weight_format.frac_width
        start = 1 << (frac - out_frac - 1) if frac > out_frac else 0  # half a step rides in
        bias = max(abs(int(b)) for b in self._bias(frac))
        rows = np.abs(self.weight).sum(axis=1)  # below 2**62: a weight has 32 bits
        reach = int(rows.max()) * max(-data.low, data.high) << shift
        return max((reach + bias + start).bit_length() + 1, 3)

    def memories(self, in_lanes: int, out_lanes: int) -> tuple[Memory, ...]:
        """Weight words by output fold, then input fold; bias words by output fold."""
        outputs, inputs = self.weight.shape
        tiles = self.weight.reshape(outputs // out_lanes, out_lanes, inputs // in_lanes, in_lanes)
        rows = tiles.transpose(0, 2, 1, 3).reshape(-1, out_lanes * in_lanes)
        width = self.weight_format.width
        found = [Memory("weight", tuple(pack_words(rows, width)), width * rows.shape[1])]
        if self.bias is not None:
            width = self.bias_format.width
            words = pack_words(self.bias.reshape(-1, out_lanes), width)
            found.append(Memory("bias", tuple(words), width * out_lanes))
        return tuple(found)


def check_lanes(where: str, channels: int, lanes: int) -> None:
    """An error unless `lanes` divides `channels`."""
    if lanes < 1 or channels % lanes:
        raise ConfigError(f"{where}: parallelism must divide {channels} outputs, got {lanes}.")


@register
@dataclass(frozen=True, eq=False)
class Linear(Component):
    """weight @ x + bias over the last dimension, cast to `format`."""

    source: Stream
    weights: Weights
    format: Fixed
    lanes: int = 1
    """Of the output."""
    module = "fixed_linear"

    def __post_init__(self) -> None:
        outputs, inputs = self.weights.weight.shape
        check_lanes("fixed_linear", outputs, self.lanes)
        if inputs != self.source.shape[-1]:
            raise ConfigError(
                f"fixed_linear: weights take {inputs} inputs, the stream has {self.source.shape}."
            )
        object.__setattr__(self, "inputs", (self.source,))
        out = Stream((*self.source.shape[:-1], outputs), self.lanes, self.format)
        object.__setattr__(self, "outputs", (out,))

    @property
    def folds(self) -> tuple[int, int]:
        """Input and output folds."""
        outputs, inputs = self.weights.weight.shape
        return inputs // self.source.lanes, outputs // self.lanes

    def golden(self, *data: Ints) -> Ints:
        sums = self.weights.accumulate(data[0], self.source.format)
        return golden.cast(sums, self.weights.frac(self.source.format), self.format)

    @cached_property
    def acc_width(self) -> int:
        """Bits of the accumulator."""
        return self.weights.acc_width(self.source.format, self.format.frac_width)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **precision("DATA_IN_0", self.source.format),
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.source.shape[-1],
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
            **self.weights.parameters(),
            **result_precision(self.format),
            "DATA_OUT_0_TENSOR_SIZE_DIM_0": self.outputs[0].shape[-1],
            "DATA_OUT_0_PARALLELISM_DIM_0": self.lanes,
            "ACC_WIDTH": self.acc_width,
        }

    def memories(self) -> tuple[Memory, ...]:
        return self.weights.memories(self.source.lanes, self.lanes)

    def twins(self) -> list[twin.Twin]:
        return [twin.Linear(self.folds, self.source.lanes)]

    def cycles(self) -> int:
        vectors = self.source.elements // self.source.shape[-1]
        return vectors * self.folds[0] * self.folds[1]

    def cost(self) -> Cost:
        registers = self.lanes * (self.acc_width + 2 * self.format.width)
        operands = self.source.lanes * (self.lanes + 1) * self.source.format.width
        multipliers = Cost(self.source.lanes * self.lanes, register_bits=registers + operands)
        return super().cost() + multipliers
