"""Tokens that the router of a mixture sends to each expert during calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import Logger
from typing import Any

from torch import fx

from chop.passes.ptq.observe.input_sums import InputStatistics

TOKENS = "tokens"
"""Key of a record: tokens that the router sends to the layer of an expert."""
FEW_TOKENS = 64
"""Tokens below which an expert is named: its sums then depend mostly on other experts' tokens."""
SHOWN = 4
"""Layers that a warning names."""


def routed_rows(statistics: InputStatistics, node: fx.Node) -> dict[str, int]:
    """Return the record of the tokens of an expert's layer; {} for other layers."""
    return {TOKENS: statistics.routed[node]} if node in statistics.routed else {}


def warn_rare_experts(logger: Logger, records: Sequence[Mapping[str, Any]], who: str) -> None:
    """Log the layers of experts that saw too few tokens to be calibrated by them alone."""
    counts = {str(r["module"]): int(r[TOKENS]) for r in records if TOKENS in r}
    rare = sorted((n for n in counts if counts[n] < FEW_TOKENS), key=counts.__getitem__)
    if rare:
        shown = ", ".join(f"{name} ({counts[name]})" for name in rare[:SHOWN])
        logger.warning(
            "%s: %d of %d layers of experts saw fewer than %d tokens: %s%s. Give more calibration "
            "rows.",
            who,
            len(rare),
            len(counts),
            FEW_TOKENS,
            shown,
            " …" if len(rare) > SHOWN else "",
        )
