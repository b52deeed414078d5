"""Relations between sizes in their simplest form: `2 * n - 2 > 12` is `n >= 8`."""

from __future__ import annotations

import math
from typing import Any

import sympy

from chop.ir.guards import RELATIONS

_RELATIONS = {
    "<": sympy.Lt,
    "<=": sympy.Le,
    ">": sympy.Gt,
    ">=": sympy.Ge,
    "==": sympy.Eq,
    "!=": sympy.Ne,
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}

Relation = tuple[str, Any, Any]


def relations(name: str, left: Any, right: Any) -> list[Relation]:
    """Return a true relation in its simplest form; none if it holds for all sizes."""
    difference = left - right
    if not difference.free_symbols:
        return []
    if _RELATIONS[name](left, right) is sympy.true or _always(name, difference):
        return []
    floors = _without_floor(name, difference)
    if floors is not None:
        return [each for floor in floors for each in relations(*floor)]
    return [_bound(name, difference) or (name, left, right)]


def _without_floor(name: str, difference: Any) -> list[Relation] | None:
    """Return `a * (n // d) + b name 0` as bounds of `n`, or None for another form."""
    floors = [f for f in difference.atoms(sympy.Function) if type(f).__name__ == "FloorDiv"]
    if len(floors) != 1 or name == "!=":
        return None
    numerator, divisor = floors[0].args
    whole = sympy.Symbol("whole", integer=True)
    rest = difference.xreplace({floors[0]: whole})
    bound = _bound(name, rest) if rest.free_symbols == {whole} else None
    if bound is None or not divisor.is_Integer or not divisor.is_positive:
        return None
    sense, _, limit = bound
    lowest = (">=", numerator, limit * divisor)
    highest = ("<=", numerator, limit * divisor + divisor - 1)
    return {">=": [lowest], "<=": [highest], "==": [lowest, highest]}[sense]


def _always(name: str, difference: Any) -> bool:
    """Return True if `difference name 0` holds for all non-negative sizes."""
    if difference.is_number:
        return bool(RELATIONS[name](float(difference), 0))
    facts = {
        "<": difference.is_negative,
        "<=": difference.is_nonpositive,
        ">": difference.is_positive,
        ">=": difference.is_nonnegative,
        "!=": difference.is_zero is False,
    }
    return bool(facts.get(name, False))


def _bound(name: str, difference: Any) -> Relation | None:
    """Solve `a * size + b name 0` for its only size; return None for another form."""
    symbols = list(difference.free_symbols)
    if len(symbols) != 1 or not difference.is_polynomial(*symbols):
        return None
    polynomial = sympy.Poly(difference, *symbols)
    if polynomial.degree() != 1 or not all(c.is_Rational for c in polynomial.all_coeffs()):
        return None
    slope, offset = polynomial.all_coeffs()
    symbol, limit = symbols[0], -offset / slope
    name = name if slope > 0 else _TURNED[name]
    if name in (">", ">="):
        lowest = math.floor(limit) + 1 if name == ">" else math.ceil(limit)
        return ">=", symbol, sympy.Integer(lowest)
    if name in ("<", "<="):
        highest = math.ceil(limit) - 1 if name == "<" else math.floor(limit)
        return "<=", symbol, sympy.Integer(highest)
    return (name, symbol, limit) if limit.is_Integer else None
