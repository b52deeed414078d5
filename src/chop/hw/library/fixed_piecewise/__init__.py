"""Piecewise linear functions, for operands too wide for a table of every code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.design.component import (
    Component,
    ComponentCost,
    Memory,
    Parameter,
    Unary,
    register,
    result_precision,
)
from chop.hw.design.cycle_model import Bracket, Twin
from chop.hw.design.samples import BYTE, COUNT, DOWN, stream
from chop.hw.reference.exact import Exact, code_range, coded, rounded
from chop.nn.quantizers import Integer
from chop.nn.quantizers.arithmetic.function import Function, Lines, fit_lines


@register
@dataclass(frozen=True)
class Piecewise(Unary):
    """Line base + slope * low bits, which the high bits choose."""

    lines: Lines
    module = "fixed_piecewise"

    def golden(self, *data: Ints) -> Ints:
        place = data[0] & ((1 << self.source.format.width) - 1)
        bases, slopes = (np.array(t, dtype=np.int64) for t in (self.lines.bases, self.lines.slopes))
        line, low = place >> self.lines.low_bits, place & ((1 << self.lines.low_bits) - 1)
        return golden.cast(bases[line] + slopes[line] * low, self.lines.frac_width, self.format)

    @property
    def widths(self) -> tuple[int, int]:
        """Bits of a base and of a slope."""
        spans = [Span(min(t), max(t), 0) for t in (self.lines.bases, self.lines.slopes)]
        return spans[0].width, spans[1].width

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            "LOW_BITS": self.lines.low_bits,
            "BASE_WIDTH": self.widths[0],
            "SLOPE_WIDTH": self.widths[1],
            "LINE_FRAC": self.lines.frac_width,
            **result_precision(self.format),
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }

    def memories(self) -> tuple[Memory, ...]:
        base_width, slope_width = self.widths
        pairs = zip(self.lines.bases, self.lines.slopes, strict=True)
        words = [
            (base & ((1 << base_width) - 1)) | ((slope & ((1 << slope_width) - 1)) << base_width)
            for base, slope in pairs
        ]
        width = base_width + slope_width
        return (Memory("lines", tuple(words), width, is_streamed=False),)

    def twins(self) -> list[Twin]:
        return [Bracket(4)]

    def cost(self) -> ComponentCost:
        base, slope = self.widths
        read, product = base + slope + self.lines.low_bits, slope + self.lines.low_bits + 1
        pipeline = 2 * read + base + product + max(base, product) + 1
        lanes = self.source.lanes
        return super().cost() + ComponentCost(lanes, register_bits=lanes * pipeline)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            _sample(torch.nn.functional.gelu, Fixed(13, 8), Fixed(12, 8), lanes=2),
            _sample(torch.exp, Fixed(14, 10), COUNT, lanes=4),
            _sample(torch.sigmoid, Fixed(16, 11, is_signed=False), DOWN),
            _sample(torch.tanh, Fixed(13, 9), Fixed(5, 3, overflow="wrap")),
            _sample(lambda x: x * x, Fixed(13, 9), BYTE),
        ]


def lines_of(function: Function, source: Fixed, out: Fixed) -> Lines:
    """Return the lines of `function` between two formats."""
    return fit_lines(function, _integer(source), _integer(out))


def _integer(number: Fixed) -> Integer:
    fields = (number.is_signed, number.narrow, number.overflow)
    return Integer(number.width, number.frac_width, *fields, rounding=number.rounding)


def _sample(function: Function, number: Fixed, out: Fixed, lanes: int = 1) -> Piecewise:
    return Piecewise(stream(64, lanes=lanes, number=number), out, lines_of(function, number, out))


# -- by definition ---------------------------------------------------------------------------------


def along_lines(x: Exact, function: Callable[[Any], Any], source: Any, out: Any) -> Exact:
    """Return `function` by the fewest of 16 to 4096 lines within a quarter step of `out`."""
    codes = np.arange(2**source.width)
    low = 2 ** (source.width - 1) if source.is_signed else 2**source.width
    numbers = np.where(codes < low, codes, codes - 2**source.width) * 2.0**-source.frac_width
    values = np.asarray(function(numbers)) * 2.0**out.frac_width
    ends = (-(2.0**40), 2.0**40)
    if out.overflow == "saturate":
        least, most = code_range(out.width, out.is_signed, out.narrow)
        ends = (float(least), float(most))
        values = np.clip(values, ends[0] - 4096, ends[1] + 4096)
    place = rounded(x, source.frac_width, "nearest_even") & (2**source.width - 1)
    for bits in range(4, 13):
        length = 2 ** (source.width - bits)
        lines, error = _fitted_lines(values.reshape(-1, length), ends)
        if error <= 0.25:
            break
    steps = lines[1][place // length] * (place % length)
    frac_width = out.frac_width + source.width - bits + 4
    return coded(lines[0][place // length] + steps, frac_width)


def _fitted_lines(values: Any, ends: tuple[float, float]) -> tuple[tuple[Any, Any], float]:
    """Return bases and slopes in steps / (16 * length), and their largest error in steps."""
    length = values.shape[1]
    scaled, along = values * (16.0 * length), np.arange(length)
    slopes = np.rint((values[:, -1] - values[:, 0]) * (16.0 * length) / (length - 1))
    rest = scaled - slopes[:, None] * along
    bases = np.rint((rest.max(axis=1) + rest.min(axis=1)) / 2)
    reached = (bases[:, None] + slopes[:, None] * along) / (16.0 * length)
    error = np.abs(np.clip(reached, *ends) - np.clip(values, *ends)).max()
    return (bases.astype(np.int64), slopes.astype(np.int64)), float(error)
