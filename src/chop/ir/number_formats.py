"""Conversion between number formats and the metadata keys `type` and `precision`."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from chop.nn.quantizers.integer import Integer
from chop.nn.quantizers.quantizer import Quantizer

TYPE_NAMES = {"integer": "fixed"}
"""Format -> `type`, because "integer" means torch's integer dtypes."""

FIXED_TYPES = ("fixed", "integer")
"""Values of `type` for fixed point with a precision of width and fractional bits."""


def stored_format(dtype: torch.dtype) -> tuple[str, list[Any]]:
    """Return `type` and `precision` of a tensor as torch stores it."""
    if dtype == torch.bool:
        return "bool", [1]
    kinds = {"float": dtype.is_floating_point, "complex": dtype.is_complex, "integer": True}
    return next(kind for kind, holds in kinds.items() if holds), [8 * dtype.itemsize]


def type_and_precision(quantizer: Quantizer) -> tuple[str, list[Any]]:
    """Return `type` and `precision` of a format: Integer(8, 3) -> ("fixed", [8, 3]).

    The precision is the format's sizes in the order of its fields, or else its bits.
    """
    values = [getattr(quantizer, f.name) for f in dataclasses.fields(quantizer) if not f.kw_only]
    sizes = [v for v in values if isinstance(v, int | tuple) and not isinstance(v, bool)]
    return TYPE_NAMES.get(quantizer.name, quantizer.name), sizes or [quantizer.bits]


def format_by_hand(type: Any, precision: Any) -> Quantizer | None:
    """Return the format for `type` and `precision` set by hand, or None if they name none (yet).

    ("fixed", [8, 3]) is signed, rounds half to even and saturates.
    """
    is_pair = isinstance(precision, list | tuple) and len(precision) == 2
    if type not in FIXED_TYPES or not is_pair:
        return None
    return Integer(int(precision[0]), int(precision[1]))
