"""Rectifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith.golden import Ints
from chop.hw.design.component import (
    Component,
    ComponentCost,
    Parameter,
    Unary,
    register,
    sign_parameter,
)
from chop.hw.design.cycle_model import Twin
from chop.hw.design.samples import BIT, BYTE, COUNT, NARROW, stream
from chop.hw.lower import Lowerer, Value, lowers, unary
from chop.hw.reference.exact import Exact
from chop.hw.reference.exact_ops import Arguments, exact_op


@register
@dataclass(frozen=True)
class Relu(Unary):
    """Rectifier max(x, 0); the format stays."""

    module = "fixed_relu"

    def __post_init__(self) -> None:
        if not self.format.holds(self.source.format):
            raise ConfigError(
                f"fixed_relu: the format stays {self.source.format}, got {self.format}."
            )
        super().__post_init__()

    def golden(self, *data: Ints) -> Ints:
        return np.maximum(data[0], 0)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            **sign_parameter(self.source.format),
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }

    def twins(self) -> list[Twin]:
        return []

    def cost(self) -> ComponentCost:
        return ComponentCost()

    @classmethod
    def cases(cls) -> Sequence[Component]:
        numbers = (NARROW, COUNT, BIT)
        return [cls(stream(16, lanes=4), BYTE), *(cls(stream(9, number=n), n) for n in numbers)]


@lowers("fixed_relu", is_monotone=True)
def lower_relu(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a rectifier in the operand's format."""
    return unary(low, node, lambda source: Relu(source, source.format))


@exact_op("relu", "input inplace")
def exact_relu(a: Arguments) -> Exact:
    """Return max(x, 0)."""
    x: Exact = a["input"]
    return x.take(np.maximum(x.codes, 0))
