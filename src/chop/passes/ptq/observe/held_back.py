"""Check of data-driven methods on calibration rows that they were not fitted to.

A method fits a change of a layer to most of the calibration rows. If the changed layer is worse
than the plain one on the held-back rows, the layer stays plain. Otherwise the change is fitted
again to all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import Logger
from typing import Any, Generic, TypeVar

HELD_BACK = 8
"""One row in this many is held back to test the result."""

KEPT = "kept"
"""Key of a record: the result that a layer has after a method."""
METHOD, NEAREST = "method", "nearest"
"""Values of `KEPT`: the method's result, or rounding to nearest where that is better."""

Rows = TypeVar("Rows")
Fit = TypeVar("Fit")


def fitted_rows(count: int) -> int:
    """Return how many of `count` rows, from the first, a method is fitted to.

    >>> fitted_rows(16), fitted_rows(7)
    (14, 7)
    """
    return count - count // HELD_BACK


@dataclass(frozen=True)
class RowSplit(Generic[Rows]):
    """Statistics of the rows that a method is fitted to and of the rows that are held back.

    `held_back`: None if there are too few rows. `whole`: statistics of all rows; None if a second
    fit takes too long.
    """

    fitted: Rows
    held_back: Rows | None = None
    whole: Rows | None = None


def checked_fit(
    fit: Callable[[Rows], Fit], error: Callable[[Fit | None, Rows], float], rows: RowSplit[Rows]
) -> Fit | None:
    """Return a fit that is no worse than plain rounding on the held-back rows; None if there is no.

    `error(None, rows)` is the error of plain rounding. The fit to all rows is preferred.
    """
    first = fit(rows.fitted)
    if rows.held_back is None:
        return first
    limit = error(None, rows.held_back)
    if not error(first, rows.held_back) <= limit:
        return None
    again = first if rows.whole is None else fit(rows.whole)
    return again if error(again, rows.held_back) <= limit else first


def fallbacks(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the modules of the records whose layers stay plain."""
    return [
        name
        for record in records
        if record.get(KEPT) == NEAREST
        for name in (record.get("modules") or record.get("readers") or [record.get("module")])
    ]


def note_fallbacks(logger: Logger, records: Sequence[Mapping[str, Any]], who: str) -> None:
    """Log the layers for which the method `who` is worse than rounding to nearest."""
    layers = fallbacks(records)
    if layers:
        shown = ", ".join(layers[:4]) + (" …" if len(layers) > 4 else "")
        logger.warning(
            "%s: %d layers keep rounding to nearest, which is better on held-back rows: %s.",
            who,
            len(layers),
            shown,
        )
