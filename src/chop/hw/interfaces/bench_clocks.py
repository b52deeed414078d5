"""Cocotb test bench of a wrapper with two clocks, whose ports are those of `test_axi`.

The clock of the design has 10 ns. The streams run at full rate and under random pauses with clocks
that are faster, slower, nearly equal and equal.
"""

from random import Random
from typing import Any

import cocotb
from test_axi import _stream_all

PERIODS_PS = (1_310, 3_770, 9_990, 10_000, 10_010, 23_330, 61_700)
"""Periods of the clock of the streams: ratios of the clocks from 0.13 to 6.2."""


@cocotb.test()
@cocotb.parametrize(period_ps=PERIODS_PS)
async def values_are_exact_at_full_rate(dut: Any, period_ps: int) -> None:
    """Stream all tensors without a pause."""
    await _stream_all(dut, None, period_ps)


@cocotb.test()
@cocotb.parametrize(period_ps=PERIODS_PS)
async def values_are_exact_under_random_pauses(dut: Any, period_ps: int) -> None:
    """Stream all tensors under random pauses of every port."""
    await _stream_all(dut, Random(period_ps), period_ps)
