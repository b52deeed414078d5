"""Registers between operations and the logic between registers, by the clock of a design.

A register more lets the clock be faster, and costs flip-flops and a cycle of latency. `lower`
brings every component to the clock of its `DesignSpec` by `Component.for_clock`; RTL, cycle model
and FIFO depths follow from the component.
"""

from __future__ import annotations

from chop.ir.design_spec import DEFAULT_MHZ as DEFAULT_MHZ

SLOW_MHZ, FAST_MHZ = 60.0, 120.0
"""Up to the first clock the fewest registers are used, from the second on the most."""


def operand_registers(clock_mhz: float, *, is_late: bool) -> int:
    """Return the registers before a multiplier; `is_late`: an operand comes from block RAM.

    >>> [operand_registers(mhz, is_late=late) for mhz in (50, 100, 150) for late in (False, True)]
    [1, 1, 1, 2, 2, 2]
    """
    if clock_mhz <= SLOW_MHZ:
        return 1
    return 2 if is_late or clock_mhz >= FAST_MHZ else 1


def adders_per_register(clock_mhz: float) -> int:
    """Return the levels of an adder tree between registers."""
    return 2 if clock_mhz <= SLOW_MHZ else 1


LOGIC_SHARE = 0.4
"""Share of a period that logic may take between two registers; wires take most of the rest."""


def logic_picoseconds(clock_mhz: float) -> int:
    """Return the time that logic may take between two registers.

    >>> logic_picoseconds(100.0)
    4000
    """
    return round(LOGIC_SHARE * 1e6 / clock_mhz)


def has_head(clock_mhz: float) -> bool:
    """Return whether the oldest beat of a small FIFO is a register."""
    return clock_mhz > SLOW_MHZ
