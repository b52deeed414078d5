"""A component that is not the library's: everything Python knows of it, beside its RTL."""

from dataclasses import dataclass

import numpy as np
import torch

from chop.hw import golden
from chop.hw.component import Unary, register
from chop.hw.exact_ops import exact_op
from chop.hw.golden import Fixed, Span
from chop.hw.lower import lowers, unary
from chop.hw.stream import Stream
from chop.ir.ops import Op


class Absolute(torch.nn.Module):
    """|x|."""

    def forward(self, x):
        return x.abs()


OPS = {"modules": {Absolute: Op("absolute", "module", rtl="fixed_abs", flops_per_output=1.0)}}


@register
@dataclass(frozen=True)
class Abs(Unary):
    """|x|, cast to `format`."""

    module = "fixed_abs"

    def golden(self, *data):
        return golden.cast(np.abs(data[0]), self.frac_width, self.format)

    @classmethod
    def cases(cls):
        byte, count = Fixed(8, 4), Fixed(5, 2, is_signed=False)
        return [cls(Stream((64,), 4, byte), byte), cls(Stream((64,), 1, count), Fixed(4, 1))]


@lowers("fixed_abs")
def lower_absolute(low, node):
    """An absolute value of the operand."""

    def make(source):
        number = source.format
        reach = Span(0, max(-number.low, number.high), number.frac_width)
        return Abs(source, low.result_format(node, reach))

    return unary(low, node, make)


@exact_op("absolute", "input")
def exact_absolute(a):
    """|x|."""
    return a["input"].take(np.abs(a["input"].codes))
