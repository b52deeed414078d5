"""Means over dimensions: of tokens, of positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import fx

from chop.hw.design.stream import Stream
from chop.hw.library.fixed_pool import AvgPool, mean_span
from chop.hw.lower.engine import Lowerer, Value, row_major
from chop.hw.lower.lowerings import lowers
from chop.hw.reference.exact import Exact, fitted, reach
from chop.hw.reference.exact_ops import Arguments, exact_op, refuse_setting
from chop.ir.meta import mase_meta

# -- from a node -----------------------------------------------------------------------------------


@lowers("fixed_mean")
def lower_mean(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a pooling over the rows of an image of one column."""
    value = low.operand(node)
    dims = len(value.shape) + 1
    dim = low.setting(node, "dim", None)
    axes = range(dims) if dim is None else [int(d) % dims for d in np.atleast_1d(dim)]
    if 0 in axes or not axes:
        raise low.refuse(node, f"a mean over dim = {dim}", "Allowed: dimensions behind the batch")
    over = sorted(a - 1 for a in axes)
    others = [k for k in range(dims - 1) if k not in over]
    count = math.prod(value.shape[k] for k in over)
    rest = math.prod(value.shape[k] for k in others)
    places = row_major(value.shape).reshape(value.shape).transpose(*over, *others).reshape(-1)
    value = low.arrange(node, value, places, (count, rest))
    stream = low.stream(value)
    source = Stream((count, 1, rest), math.gcd(stream.lanes, rest), stream.format)
    why = f"a mean over {count} is no binary fraction"
    number = low.result_format(node, mean_span(source.format, count, [count]), why)
    pool = AvgPool(source, (1, count), (1, count), format=number)
    shape = tuple(mase_meta(node).common["results"]["data_out_0"]["shape"])[1:]
    return Value(low.add(node, pool, value), shape, row_major(shape))


# -- by definition ---------------------------------------------------------------------------------


@exact_op("mean", "input dim keepdim dtype")
def exact_mean(a: Arguments) -> Exact:
    """Return the sum over `dim`, divided by the number of its elements."""
    x: Exact = a["input"]
    dim: Any = a.get("dim")
    if dim is None or dim == []:
        raise refuse_setting("dim", dim, "dimensions by number")
    axes = tuple(int(d) % len(x.shape) for d in np.atleast_1d(dim))
    count = math.prod(x.shape[k] for k in axes)
    wide = fitted(x.codes, reach(x.codes) * count)
    total = x.take(np.asarray(wide.sum(axis=axes, keepdims=bool(a.get("keepdim", False)))))
    return total / count
