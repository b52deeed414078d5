"""Layers of `chop.nn.modules.lookup_tables`: thermometer code, tables, class sums."""

from __future__ import annotations

from chop.ir.ops.row import MODULE, Op

ROWS = (
    Op("thermometer", MODULE, flops_per_output=1, rtl="thermometer"),
    Op("lookup_tables", MODULE, parameters=("tables", "logits"), rtl="lookup_tables"),
    Op("class_sum", MODULE, flops_per_output=1, rtl="class_sum"),
)
