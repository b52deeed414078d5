"""`mase quantize --budget`: a size of all weights, a time per token, or a loss of perplexity."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from chop.cli.memory_limit import AMOUNT, UNITS
from chop.errors import ConfigError

TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*ms")
PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


@dataclass(frozen=True)
class AllocationBudget:
    """Limit of an allocation: bits per weight, or a loss in nats per row of the output."""

    bits: float | None = None
    loss: float | None = None


def parsed_budget(
    text: str | None, weights: int, bandwidth: str | None = None
) -> AllocationBudget | None:
    """Return the budget of a model with that many weights; None without a text.

    The decode time of one token is the time to read all weights once, at `bandwidth` per second:
    with one sequence, decoding waits for memory.

    >>> parsed_budget("1MB", 2_000_000).bits
    4.0
    >>> parsed_budget("2ms", 8_000_000, "2GB/s").bits
    4.0
    >>> round(parsed_budget("1%", 1).loss, 5)
    0.00995
    """
    if text is None:
        return None
    share, size = PERCENT.fullmatch(text.strip()), AMOUNT.fullmatch(text.strip())
    time = TIME.fullmatch(text.strip())
    if (time is None) != (bandwidth is None):
        raise ConfigError(
            f"quantize.bandwidth: {bandwidth or 'none'}, with the budget '{text}'. A time per "
            "token, as 20ms, needs the bandwidth of the memory, as 50GB/s, and nothing else does."
        )
    if time is not None and bandwidth is not None and float(time[1]) > 0:
        size_read = float(time[1]) / 1000 * _per_second(bandwidth)
        return AllocationBudget(bits=8 * size_read / weights)
    if share is not None and float(share[1]) > 0:
        return AllocationBudget(loss=math.log1p(float(share[1]) / 100))
    if size is not None and size[2] is not None and float(size[1]) > 0:
        return AllocationBudget(bits=8 * float(size[1]) * UNITS[size[2].lower()] / weights)
    raise ConfigError(
        f"quantize.budget: '{text}' is neither a size nor a share. Allowed: a size of all weights "
        "with its unit, as 120MB or 1.5GiB, a time per token, as 20ms, or an increase of the "
        "perplexity, as 1%."
    )


def _per_second(text: str) -> float:
    """Return the bytes per second of a bandwidth."""
    amount = AMOUNT.fullmatch(text.strip().removesuffix("/s"))
    if (
        amount is None
        or amount[2] is None
        or not text.strip().endswith("/s")
        or not float(amount[1])
    ):
        raise ConfigError(
            f"quantize.bandwidth: '{text}' is no bandwidth. Allowed: a size per second, as 50GB/s."
        )
    return float(amount[1]) * UNITS[amount[2].lower()]
