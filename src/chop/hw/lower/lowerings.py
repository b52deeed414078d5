"""Lowerings of ops: one for each name in the column `rtl` of the op table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import fx

from chop.errors import HardwareError
from chop.ir.ops import OPS
from chop.registry import Registry, suggest

if TYPE_CHECKING:  # the engine looks lowerings up
    from chop.hw.lower.engine import Lowerer, Value

LowerNode = Callable[["Lowerer", fx.Node], "Value | None"]


@dataclass(frozen=True)
class Lowering:
    """`lower(engine, node)` adds the stages of a node and returns its value.

    `takes_pixels`: it needs images pixel by pixel. `is_wiring`: it passes on the same numbers.
    `is_monotone`: it picks one of its numbers, or zero, and so commutes with a monotone cast.
    `reads_size`: it reads no numbers at all.
    """

    lower: LowerNode
    takes_pixels: bool = False
    is_wiring: bool = False
    is_monotone: bool = False
    reads_size: bool = False


LOWERINGS: Registry[Lowering] = Registry("hardware realisation")


def lowers(name: str, **properties: bool) -> Callable[[LowerNode], LowerNode]:
    """Register a lowering of ops whose row has `rtl=name`; `properties`: see `Lowering`."""

    def decorate(function: LowerNode) -> LowerNode:
        LOWERINGS.register(name, Lowering(function, **properties))
        return function

    return decorate


def check_op_table() -> None:
    """Raise if a row of the op table names an unknown realisation."""
    for op in OPS.values():
        if op.rtl and op.rtl not in LOWERINGS:
            raise HardwareError(
                f"op '{op.name}': unknown hardware realisation '{op.rtl}'. "
                f"{suggest(op.rtl, LOWERINGS)}"
            )
