"""Batch normalisation at inference: one product and one sum per channel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from torch import fx, nn

from chop.hw.arith import golden
from chop.hw.arith.affine import Line, fit_lines
from chop.hw.arith.golden import MAX_WIDTH, Fixed, Ints, Span
from chop.hw.design.component import (
    Component,
    ComponentCost,
    Memory,
    Parameter,
    Unary,
    precision,
    register,
)
from chop.hw.design.cycle_model import ConstantsTwin, Twin
from chop.hw.design.samples import BYTE, COUNT, DOWN, WIDE, codes, stream
from chop.hw.design.stream import Stream, pack_words
from chop.hw.library.fixed_linear import encoded
from chop.hw.lower import Lowerer, Value, fixed_formats, lowers
from chop.hw.lower.engine import pixel_shape
from chop.hw.reference.exact import Exact
from chop.hw.reference.exact_ops import Arguments, along, exact_op, refuse_setting, with_bias
from chop.ir.ops import node_module

ROOT_BITS = 200
"""Fractional bits of 1 / sqrt(variance): far more than any rounding can show."""


@register
@dataclass(frozen=True, eq=False)
class BatchNorm(Unary):
    """Batch normalisation: weight * x + bias, with a pair of codes per channel (last dimension)."""

    weight: Ints
    bias: Ints
    weight_format: Fixed
    bias_format: Fixed
    module = "fixed_batch_norm"

    def golden(self, *data: Ints) -> Ints:
        product_frac = self.frac_width + self.weight_format.frac_width
        frac = max(product_frac, self.bias_format.frac_width)
        bits = self.source.format.signed_width + self.weight_format.width + frac - product_frac
        bits = max(bits, self.bias_format.width + frac - self.bias_format.frac_width) + 1
        product = (golden.wide(data[0], bits) * self.weight) << (frac - product_frac)
        bias = golden.wide(self.bias, bits) << (frac - self.bias_format.frac_width)
        return golden.cast(product + bias, frac, self.format)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **super().parameters(),
            **precision("WEIGHT", self.weight_format),
            **precision("BIAS", self.bias_format),
        }

    def memories(self) -> tuple[Memory, ...]:
        return tuple(
            Memory(name, tuple(pack_words(codes.reshape(-1, lanes), width)), width * lanes)
            for name, codes, width, lanes in (
                ("weight", self.weight, self.weight_format.width, self.source.lanes),
                ("bias", self.bias, self.bias_format.width, self.source.lanes),
            )
        )

    def twins(self) -> list[Twin]:
        return [ConstantsTwin(latency=2)]

    def cost(self) -> ComponentCost:
        return super().cost() + ComponentCost(multipliers=self.source.lanes)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        fine = Fixed(12, 11)
        return [
            cls(stream(3, 8, lanes=4), BYTE, codes(BYTE, 8), codes(BYTE, 8, seed=8), BYTE, BYTE),
            cls(stream(5, 3), BYTE, codes(BYTE, 3), codes(WIDE, 3, seed=8), BYTE, fine),
            cls(stream(5, 2, number=COUNT), DOWN, codes(WIDE, 2), codes(BYTE, 2), WIDE, BYTE),
        ]


# -- from a node -----------------------------------------------------------------------------------


@lowers("fixed_batch_norm")
def lower_batch_norm(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a product and a sum per channel, with constants that give the model's results."""
    value = low.operand(node)
    shape = value.shape
    if len(shape) > 1:
        value, shape = low.pixels(node, value), pixel_shape(shape)
    stream = low.stream(value)
    source = Stream(shape, math.gcd(stream.lanes, shape[-1]), stream.format)
    number = low.result_format(node, None, "its result is no binary fraction")
    lines = _lines(low, node)
    if len(value.shape) == 1:
        lines = [lines[k] for k in value.order]
    fit = fit_lines(tuple(lines), source.format, number)
    if fit is None or _size(*fit.slopes, *fit.offsets) > MAX_WIDTH:
        raise low.refuse(
            node,
            f"no constants of {MAX_WIDTH} bits give its results",
            "Quantise its operand (data_in_width …) or its result (data_out_width …)",
        )
    weight = Span(min(fit.slopes), max(fit.slopes), fit.frac_width).format
    bias = Span(min(fit.offsets), max(fit.offsets), fit.offset_frac).format
    slopes, offsets = (np.array(c, dtype=np.int64) for c in (fit.slopes, fit.offsets))
    norm = BatchNorm(source, number, slopes, offsets, weight, bias)
    return replace(value, wire=low.add(node, norm, value))


def _size(*numbers: int) -> int:
    return Span(min(numbers), max(numbers), 0).width


def _lines(low: Lowerer, node: fx.Node) -> list[Line]:
    """Return each channel's (x - mean) / sqrt(variance + eps) * weight + bias as a line."""
    module: Any = node_module(node)
    if module.running_mean is None or module.running_var is None:
        raise low.refuse(
            node, "it takes the statistics of the batch", "Allowed: track_running_stats = True"
        )
    channels = module.num_features
    weight, bias = (
        _fractions(node, module, name, default)
        for name, default in (("weight", [1.0] * channels), ("bias", [0.0] * channels))
    )
    lines = []
    for k, (mean, variance) in enumerate(
        zip(module.running_mean.tolist(), module.running_var.tolist(), strict=True)
    ):
        slope = _inverse_root(Fraction(variance) + Fraction(module.eps)) * weight[k]
        lines.append(Line(slope, bias[k] - Fraction(mean) * slope))
    return lines


def _fractions(node: fx.Node, module: nn.Module, name: str, default: list[float]) -> list[Fraction]:
    """Return a parameter of a layer in its format, if it has one."""
    parameter = getattr(module, name)
    if parameter is None:
        return [Fraction(x) for x in default]
    number = fixed_formats.operand_format(node, name)
    if number is None:
        return [Fraction(x) for x in parameter.detach().double().tolist()]
    unit = Fraction(2) ** -number.frac_width
    return [int(code) * unit for code in encoded(parameter, number)]


def _inverse_root(number: Fraction) -> Fraction:
    """Return 1 / sqrt(number) as a binary fraction."""
    square = (number.denominator << 2 * ROOT_BITS) // number.numerator
    return Fraction(math.isqrt(square), 1 << ROOT_BITS)


# -- by definition ---------------------------------------------------------------------------------

_ARGUMENTS = "input running_mean running_var weight bias training momentum eps"
SQRT_BITS = 240
"""Fractional bits of the root of a variance: no rounding is closer than this."""


def _inverse_roots(variance: Exact, eps: float) -> Exact:
    """Return 1 / sqrt(variance + eps), to SQRT_BITS bits."""
    roots = []
    for index in range(variance.codes.size):
        total = variance.fraction(index) + Fraction(float(eps))
        if total <= 0:
            raise refuse_setting("running_var + eps", float(total), "more than 0")
        square = (total.denominator << 2 * SQRT_BITS) // total.numerator
        roots.append(math.isqrt(square))
    return Exact(np.array(roots, dtype=object), SQRT_BITS, 1, is_rounded=True)


@exact_op("batch_norm1d batch_norm2d", _ARGUMENTS)
def exact_batch_norm(a: Arguments) -> Exact:
    """Return (input - mean) / sqrt(variance + eps) * weight + bias."""
    x, mean, variance = a["input"], a.get("running_mean"), a.get("running_var")
    if mean is None or variance is None or a.get("training"):
        raise refuse_setting("track_running_stats", False, "running statistics")
    scale = _inverse_roots(variance, a.get("eps", 1e-5))
    scale = scale if a.get("weight") is None else scale * a["weight"]
    dims = len(x.shape)
    centred = x - along(mean, 1, dims)
    return with_bias(centred * along(scale, 1, dims), a.get("bias"), 1)
