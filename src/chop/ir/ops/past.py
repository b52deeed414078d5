"""Ops of a graph with a cache: the keys and values of the tokens before."""

from __future__ import annotations

from chop.ir import past
from chop.ir.ops.row import IMPLICIT_FUNC, Op

ROWS = (
    Op("past_length", IMPLICIT_FUNC, functions=(past.past_length,)),
    Op("update_past", IMPLICIT_FUNC, functions=(past.update_past,), is_view=True, dims="past"),
    Op("update_cross", IMPLICIT_FUNC, functions=(past.update_cross,), is_view=True, dims="past"),
    Op("cross_source", IMPLICIT_FUNC, functions=(past.cross_source,), is_view=True),
    Op("positions", IMPLICIT_FUNC, functions=(past.positions,), is_view=True),
    Op("causal_mask", IMPLICIT_FUNC, functions=(past.causal_mask,), is_view=True),
    Op("bidirectional_mask", IMPLICIT_FUNC, functions=(past.bidirectional_mask,), is_view=True),
)
