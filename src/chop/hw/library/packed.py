"""Arrays in which two outputs share a multiplier, for parts with wide multipliers.

x * (b * 2**n + a) is x * b * 2**n + x * a. With n the bits of a product, the low n bits are x * a,
and what is above them is x * b, less one where x * a is negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chop.errors import ConfigError
from chop.hw.arith.golden import Fixed
from chop.hw.design.component import Component, ComponentCost, Parameter, register
from chop.hw.design.samples import COUNT, NARROW
from chop.hw.design.stream import Stream
from chop.hw.library.fixed_linear import PRODUCTS, Linear, Weights
from chop.hw.lower import Lowerer

WIDEST = {"xc7": (25, 18), "ecp5": (18, 18)}
"""Widest signed operands of a multiplier of each family, bits."""


def pair_width(data: Fixed, weight: Fixed) -> int:
    """Return the bits of two weights side by side, for products with `data`.

    >>> pair_width(Fixed(8, 4), Fixed(8, 4)), pair_width(Fixed(5, 4), Fixed(5, 4))
    (25, 16)
    """
    return data.signed_width + 2 * weight.signed_width + 1


def families(data: Fixed, weight: Fixed) -> list[str]:
    """Return the families whose multipliers form two such products."""
    bits = pair_width(data, weight)
    return [name for name, (a, b) in WIDEST.items() if bits <= a and data.signed_width <= b]


@register
@dataclass(frozen=True, eq=False)
class PackedLinear(Linear):
    """Folded product with one multiplier for two output lanes."""

    name = "fixed_linear_packed"

    def __post_init__(self) -> None:
        super().__post_init__()
        data, weight = self.source.format, self.weights.weight_format
        if not families(data, weight):
            raise ConfigError(
                f"{self.name}: data of {data.signed_width} bits and two weights of "
                f"{weight.signed_width} take {pair_width(data, weight)} bits of an operand "
                f"(numbers without a sign count one more). Allowed: {WIDEST['xc7'][0]} on xc7, "
                f"{WIDEST['ecp5'][0]} on ecp5."
            )

    def parameters(self) -> Mapping[str, Parameter]:
        return {**super().parameters(), "IS_PACKED": True}

    def cost(self) -> ComponentCost:
        return replace(super().cost(), multipliers=self.source.lanes * -(-self.lanes // 2))

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls.sample(4, 4, 2, 4),
            cls.sample(6, 3, 6, 3, x=NARROW, w=Fixed(4, 1)),
            cls.sample(4, 2, 1, 2, x=COUNT, w=NARROW),
        ]


# -- from a node -----------------------------------------------------------------------------------


def _make_packed(
    low: Lowerer, name: str, source: Stream, weights: Weights, number: Fixed
) -> Component:
    """Return a folded array with two outputs per multiplier."""
    outputs, inputs = weights.weight.shape
    in_lanes, out_lanes = low.parallelism.of(name, inputs, outputs)
    return PackedLinear(replace(source, lanes=in_lanes), weights, number, out_lanes)


PRODUCTS.register("packed", _make_packed)
