"""`mase quantize --budget`: a size of all weights, or an increase of the perplexity."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from chop.cli.memory_limit import AMOUNT, UNITS
from chop.errors import ConfigError

PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


@dataclass(frozen=True)
class AllocationBudget:
    """Limit of an allocation: bits per weight, or a loss in nats per row of the output."""

    bits: float | None = None
    loss: float | None = None


def parsed_budget(text: str | None, weights: int) -> AllocationBudget | None:
    """Return the budget of a model with that many weights; None without a text.

    >>> parsed_budget("1MB", 2_000_000).bits
    4.0
    >>> round(parsed_budget("1%", 1).loss, 5)
    0.00995
    """
    if text is None:
        return None
    share, size = PERCENT.fullmatch(text.strip()), AMOUNT.fullmatch(text.strip())
    if share is not None and float(share[1]) > 0:
        return AllocationBudget(loss=math.log1p(float(share[1]) / 100))
    if size is not None and size[2] is not None and float(size[1]) > 0:
        return AllocationBudget(bits=8 * float(size[1]) * UNITS[size[2].lower()] / weights)
    raise ConfigError(
        f"quantize.budget: '{text}' is neither a size nor a share. Allowed: a size of all weights "
        "with its unit, as 120MB or 1.5GiB, or an increase of the perplexity, as 1%."
    )
