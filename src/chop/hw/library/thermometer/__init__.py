"""Thermometer code: comparisons of each input with constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.component import (
    Component,
    ComponentCost,
    Parameter,
    register,
    sign_parameter,
)
from chop.hw.design.cycle_model import Twin
from chop.hw.design.samples import BIT, BYTE, COUNT, codes, stream
from chop.hw.design.stream import Stream
from chop.hw.lower import Lowerer, Value, lowers
from chop.hw.lower.engine import TRUTH, row_major
from chop.hw.reference.exact import Exact
from chop.hw.reference.exact_ops import Arguments, exact_op
from chop.ir.ops import node_module


@register
@dataclass(frozen=True, eq=False)
class ThermometerCode(Component):
    """Bits of comparisons with `thresholds` (inputs, levels), codes of the input's format."""

    module = "thermometer"
    has_sums = False

    source: Stream
    thresholds: Ints

    def __post_init__(self) -> None:
        inputs, levels = self.thresholds.shape
        if self.source.lanes != inputs or self.source.shape[-1] != inputs:
            raise ConfigError(
                f"thermometer: thresholds of {inputs} inputs in one beat, the stream has "
                f"{self.source.lanes} of {self.source.shape}."
            )
        out = Stream((*self.source.shape[:-1], inputs * levels), inputs * levels, TRUTH)
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (out,))

    def golden(self, *data: Ints) -> Ints:
        bits = data[0][..., None] >= self.thresholds
        return bits.reshape(len(bits), *self.output.shape).astype(np.int64)

    def parameters(self) -> Mapping[str, Parameter]:
        number = self.source.format
        offsets = np.clip(self.thresholds - number.low, 0, 1 << number.width)
        return {
            "DATA_IN_0_PRECISION_0": number.width,
            **sign_parameter(number),
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.thresholds.shape[0],
            "LEVELS": self.thresholds.shape[1],
            "THRESHOLDS": tuple(int(each) for each in offsets.reshape(-1)),
        }

    def twins(self) -> list[Twin]:
        return []

    def cost(self) -> ComponentCost:
        return ComponentCost()

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls.sample(BYTE, 5, 3),
            cls.sample(COUNT, 4, 2),
            cls.sample(BIT, 3, 2),
            cls.sample(Fixed(1, 0, is_signed=False), 3, 1),
        ]

    @classmethod
    def sample(cls, number: Fixed, inputs: int, levels: int) -> ThermometerCode:
        """Return a code for tests, with both ends of the range and one step beyond."""
        thresholds = codes(number, inputs, levels)
        thresholds[:3, 0] = number.low, number.high, number.high + 1
        return cls(stream(2, inputs, lanes=inputs, number=number), thresholds)


# -- from a node -----------------------------------------------------------------------------------


@lowers("thermometer")
def lower_thermometer(low: Lowerer, node: fx.Node) -> Value:
    """Lower to comparisons with the codes that first reach each threshold."""
    module: Any = node_module(node)
    value = low.operand(node)
    value = low.arrange(node, value, row_major(value.shape), value.shape)
    number, features = low.stream(value).format, module.features
    scaled = np.ldexp(module.thresholds.double().cpu().numpy(), number.frac_width)
    first = np.clip(np.ceil(scaled), number.low, number.high + 1).astype(np.int64)
    source = Stream(value.shape, features, number)
    shape = (*value.shape[:-1], first.size)
    wire = low.add(node, ThermometerCode(source, first), value)
    return Value(wire, shape, row_major(shape))


# -- by definition ---------------------------------------------------------------------------------


@exact_op("thermometer", "input thresholds")
def exact_thermometer(a: Arguments) -> Exact:
    """Return 1 for each threshold that is not above the input."""
    x: Exact = a["input"]
    gap = x.take(x.codes[..., None]) - a["thresholds"]
    bits = np.asarray(gap.codes >= 0).astype(np.int64)
    return Exact(bits.reshape(*x.shape[:-1], -1))
