"""Ops of a tensor and a plain number: one product and one sum for each element.

A plain number has no format: PyTorch computes with it exactly, and so does hardware. A number that
no short constant holds (0.3 is a binary fraction of 54 bits) is replaced by one that gives the same
rounded results for every code of the operand.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
from torch import fx

from chop.hw.arith.affine import Line, fit_lines
from chop.hw.arith.golden import MAX_WIDTH, Fixed, Span
from chop.hw.design.stream import Stream
from chop.hw.library.fixed_batch_norm import BatchNorm
from chop.hw.lower import Lowerer, Value


def lower_line(low: Lowerer, node: fx.Node, line: Line, number: float) -> Value:
    """Return slope * x + offset for the only tensor of `node`, which also reads `number`."""
    value = low.operand(node)
    stream = low.stream(value)
    source = Stream((stream.elements // stream.lanes, stream.lanes), stream.lanes, stream.format)
    result, pairs = _constants(low, node, line, source.format, number)
    slope, offset = (np.full(stream.lanes, code) for code, _ in pairs)
    component = BatchNorm(source, result, slope, offset, *(form for _, form in pairs))
    return replace(value, wire=low.add(node, component, value))


def _constants(
    low: Lowerer, node: fx.Node, line: Line, data: Fixed, number: float
) -> tuple[Fixed, list[tuple[int, Fixed]]]:
    """Return the result's format, and slope and offset as codes with their formats."""
    exact = [_exact(part) for part in (line.slope, line.offset)]
    is_short = all(form.width <= MAX_WIDTH for _, form in exact)
    result = low.result_format(node, _span(data, exact) if is_short else None, _told(number))
    fit = fit_lines((line,), data, result)
    if fit is None:
        shortest = exact
    else:
        shortest = [
            (code, Span(min(code, 0), max(code, 0), frac).format)
            for code, frac in (
                (fit.slopes[0], fit.frac_width),
                (fit.offsets[0], fit.offset_frac),
            )
        ]
    if any(form.width > MAX_WIDTH for _, form in shortest):
        raise low.refuse(
            node,
            f"{_told(number)}, and no constants of {MAX_WIDTH} bits give its results",
            "Quantise its operand (data_in_width …) or its result (data_out_width …)",
        )
    return result, shortest


def _exact(part: Fraction) -> tuple[int, Fixed]:
    """Return a binary fraction as a code, with the format that holds it."""
    frac_width = part.denominator.bit_length() - 1
    code = part.numerator
    return code, Span(min(code, 0), max(code, 0), frac_width).format


def _span(data: Fixed, exact: list[tuple[int, Fixed]]) -> Span:
    """Return the codes of exact results."""
    (slope, slope_form), (offset, offset_form) = exact
    product_frac = data.frac_width + slope_form.frac_width
    frac_width = max(product_frac, offset_form.frac_width)
    ends = [slope * end << (frac_width - product_frac) for end in (data.low, data.high)]
    moved = offset << (frac_width - offset_form.frac_width)
    return Span(min(ends) + moved, max(ends) + moved, frac_width)


def _told(number: float) -> str:
    width = _exact(Fraction(number))[1].width
    return f"the number {number!r} is a binary fraction of {width} bits"
