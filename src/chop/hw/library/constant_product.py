"""Products with constant weights that take a whole vector in each cycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.design.claims import Proof, packed
from chop.hw.design.component import Component, Parameter, result_precision, rtl_sources
from chop.hw.design.samples import BYTE, stream
from chop.hw.design.stream import Stream
from chop.hw.library.fixed_linear import Weights, sample_weights
from chop.hw.lower import Lowerer

MOST_BITS = 64
"""Most bits of an exact result: those of a word of a parameter."""


@dataclass(frozen=True, eq=False)
class ConstantProduct(Component):
    """Product weight @ x + bias over the last dimension, cast to `format`; a vector per cycle."""

    source: Stream
    weights: Weights
    format: Fixed
    adders_per_stage: int = 2
    """Additions between registers."""

    def __post_init__(self) -> None:
        outputs, inputs = self.weights.weight.shape
        if self.adders_per_stage < 1:
            raise ConfigError(
                f"{self.module}: adders_per_stage must be 1 or more, got {self.adders_per_stage}."
            )
        if inputs != self.source.shape[-1] or self.source.lanes != inputs:
            raise ConfigError(
                f"{self.module}: weights take {inputs} inputs in one beat, the stream has "
                f"{self.source.lanes} of {self.source.shape}."
            )
        object.__setattr__(self, "inputs", (self.source,))
        out = Stream((*self.source.shape[:-1], outputs), outputs, self.format)
        object.__setattr__(self, "outputs", (out,))

    def golden(self, *data: Ints) -> Ints:
        sums = self.weights.accumulate(data[0], self.source.format)
        return golden.cast(sums, self.frac, self.format)

    @property
    def frac(self) -> int:
        """Fractional bits of an exact result."""
        return self.weights.frac(self.source.format)

    @property
    def extra(self) -> int:
        """Fractional bits that a result has beyond those of a product: the bias is finer."""
        return self.frac - self.source.format.frac_width - self.weights.weight_format.frac_width

    @cached_property
    def acc_width(self) -> int:
        """Bits of an exact result."""
        return self.weights.acc_width(self.source.format, self.format.frac_width)

    @property
    def half(self) -> int:
        """Half an output step, added to the bias if results are rounded to even."""
        dropped = self.frac - self.format.frac_width
        return 1 << dropped - 1 if dropped > 0 and self.format.rounding == "nearest_even" else 0

    def starts(self) -> list[int]:
        """Return the bias plus half a step of each output."""
        bias: Any = self.weights.bias
        shift = self.frac - self.weights.bias_format.frac_width
        codes = [0] * len(self.weights.weight) if bias is None else [int(b) << shift for b in bias]
        return [b + self.half for b in codes]

    def ends(self) -> tuple[Ints, ...]:
        return (self.weights.ends(self.source),)

    def intervals(self) -> Mapping[str, Span]:
        return {"ACC_WIDTH": self.weights.acc_span(self.source.format, self.format)}

    def result_parameters(self) -> dict[str, Parameter]:
        """Return the parameters of a module's results."""
        precision: Mapping[str, Parameter] = result_precision(self.format)
        return {
            **precision,
            "DATA_OUT_0_TENSOR_SIZE_DIM_0": self.outputs[0].shape[-1],
            "ACC_WIDTH": self.acc_width,
            "ACC_FRAC": self.frac,
            "IS_HALF_ADDED": self.half > 0,
        }

    @classmethod
    def sample(
        cls,
        inputs: int,
        outputs: int,
        *,
        step: int = 2,
        x: Fixed = BYTE,
        w: Fixed = BYTE,
        b: Fixed | None = BYTE,
        y: Fixed = BYTE,
    ) -> Self:
        """Return a layer for tests, with two vectors in a tensor."""
        source = stream(2, inputs, lanes=inputs, number=x)
        return cls(source, sample_weights(outputs, inputs, w, b), y, step)

    @classmethod
    def make(
        cls, low: Lowerer, name: str, source: Stream, weights: Weights, number: Fixed
    ) -> Component:
        """Return the product of a node, a whole vector at once."""
        whole = replace(source, lanes=source.shape[-1])
        return cls(whole, weights, number, low.parallelism.adders_per_stage)


def constant_proof(
    kind: type[ConstantProduct],
    weight: list[list[int]],
    bias: list[int],
    step: int,
    number: Fixed,
    *,
    is_slow: bool = False,
) -> Proof:
    """Return the proof of a layer of 4-bit weights against the weights it was made from."""
    weights = Weights(np.array(weight), Fixed(4, 1), np.array(bias), Fixed(4, 2))
    source = Stream((len(weight[0]),), len(weight[0]), number)
    parameters = kind(source, weights, Fixed(4, 1), step).parameters()
    sizes = {k: packed(v, 64) if isinstance(v, tuple) else v for k, v in parameters.items()}
    sizes |= {k: int(v) for k, v in sizes.items() if isinstance(v, bool)}
    sizes["WEIGHT"] = packed([w % 16 for row in weight for w in row], 4)
    sizes["BIAS"] = packed([b % 16 for b in bias], 4)
    shown = {"IN_SIZE": len(weight[0]), "OUT_SIZE": len(weight), "IN_SIGNED": int(number.is_signed)}
    laws = rtl_sources()[kind.module].parent / "laws.svh"
    return Proof(kind.module, shown, is_slow=is_slow, sizes=sizes, text=laws)


def fields(*values: tuple[int, int]) -> int:
    """Return (value, width) pairs as one word, the first in the low bits.

    >>> fields((3, 4), (1, 2))
    19
    """
    word = place = 0
    for value, width in values:
        assert 0 <= value < 1 << width, f"{value} does not fit {width} bits"
        word, place = word | int(value) << place, place + width
    return word
