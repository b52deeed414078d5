"""Place of the largest element: the choice of a class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from chop.hw.design.cycle_model import Bracket, Twin
from chop.hw.design.samples import BIT, BYTE, COUNT, NARROW, stream
from chop.hw.design.stream import Stream
from chop.hw.lower import Lowerer, Value, lowers
from chop.hw.lower.engine import row_major
from chop.hw.reference.exact import Exact
from chop.hw.reference.exact_ops import Arguments, exact_op, refuse_setting

MOST_ELEMENTS = 1024
"""Elements of the longest vector: a beat is a whole one."""


@register
@dataclass(frozen=True)
class ArgMax(Component):
    """Place of the largest element of each vector, the first of equal ones."""

    source: Stream
    module = "fixed_argmax"

    def __post_init__(self) -> None:
        size = self.source.shape[-1]
        if not 2 <= size <= MOST_ELEMENTS or self.source.lanes != size:
            raise ConfigError(
                f"fixed_argmax: a beat must be a whole vector of 2 to {MOST_ELEMENTS} elements, "
                f"got {self.source}."
            )
        out = Stream(self.source.shape[:-1] or (1,), 1, self.place_format)
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (out,))

    @property
    def levels(self) -> int:
        """Levels of the tree of comparisons, which are the bits of a place."""
        return (self.source.shape[-1] - 1).bit_length()

    @property
    def place_format(self) -> Fixed:
        """Format of a place."""
        return Fixed(self.levels, 0, is_signed=False)

    def golden(self, *data: Ints) -> Ints:
        places: Ints = data[0].argmax(-1).reshape(len(data[0]), *self.output.shape)
        return places

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            **sign_parameter(self.source.format),
            "DATA_OUT_0_PRECISION_0": self.levels,
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }

    def twins(self) -> list[Twin]:
        return [Bracket(self.levels)]

    def cost(self) -> ComponentCost:
        each = self.source.format.width + self.levels
        return ComponentCost(register_bits=each * self.source.lanes + 2 * self.levels)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(16, 10, lanes=10, number=COUNT)),
            cls(stream(16, 3, lanes=3)),
            cls(stream(16, 2, lanes=2, number=NARROW)),
            cls(stream(7, lanes=7, number=NARROW)),
            cls(stream(16, 5, lanes=5, number=BIT)),
            cls(stream(4, 4, lanes=4, number=BYTE)),
        ]


# -- from a node -----------------------------------------------------------------------------------


@lowers("fixed_argmax")
def lower_argmax(low: Lowerer, node: fx.Node) -> Value:
    """Lower to the place of the largest element of each row."""
    value = low.operand(node)
    name = str(getattr(node.target, "__name__", node.target))
    dim, keeps = (low.setting(node, key, None, ("dim", "keepdim")) for key in ("dim", "keepdim"))
    if name != "argmax" or dim not in (-1, len(value.shape)) or keeps:
        raise low.refuse(
            node, f"{name} with dim = {dim}", "Allowed: argmax over the last dimension"
        )
    value = low.arrange(node, value, row_major(value.shape), value.shape)
    component = ArgMax(Stream(value.shape, value.shape[-1], low.stream(value).format))
    shape = value.shape[:-1]
    return Value(low.add(node, component, value), shape, row_major(shape))


# -- by definition ---------------------------------------------------------------------------------


@exact_op("argmax", "input dim keepdim")
def exact_argmax(a: Arguments) -> Exact:
    """Return the first place of the largest number of each row."""
    x: Exact = a["input"]
    if a.get("dim") not in (-1, len(x.shape) - 1) or a.get("keepdim"):
        raise refuse_setting("dim", a.get("dim"), "the last dimension")
    largest = x.codes.max(-1, keepdims=True)
    places = np.arange(x.shape[-1])
    return Exact(np.where(x.codes == largest, places, x.shape[-1]).min(-1))
