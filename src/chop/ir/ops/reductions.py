"""Reductions over dimensions."""

from __future__ import annotations

from chop.ir.ops.by_name import tensor_op
from chop.ir.ops.row import Op


def _reduction(name: str, names: str = "", rtl: str = "") -> Op:
    return tensor_op(name, names, flops_per_output=1, dims="reduce", rtl=rtl)


ROWS = (
    _reduction("sum", "sum nansum"),
    _reduction("prod"),
    _reduction("mean", "mean nanmean", rtl="fixed_mean"),
    _reduction("var", "var var_mean"),
    _reduction("std", "std std_mean"),
    _reduction("max", "max amax"),
    _reduction("min", "min amin"),
    _reduction("argmax", "argmax argmin"),
    _reduction("logsumexp"),
    _reduction("all", "all any"),
)
