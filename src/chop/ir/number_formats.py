"""Conversion between number formats and the metadata keys `type` and `precision`."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from chop.nn.quantizers.base import Quantizer
from chop.nn.quantizers.integer import Integer

TYPE_NAMES = {"integer": "fixed"}
"""Format -> `type`, because "integer" means torch's integer dtypes."""

FIXED_TYPES = ("fixed", "integer")
"""Values of `type` for fixed point with a precision of width and fractional bits."""

NUMBER_FORMATS: dict[torch.dtype, tuple[str, list[int]]] = {
    torch.float64: ("float", [64]),
    torch.float32: ("float", [32]),
    torch.float16: ("float", [16]),
    torch.bfloat16: ("float", [16]),
    torch.int64: ("integer", [64]),
    torch.int32: ("integer", [32]),
    torch.int16: ("integer", [16]),
    torch.int8: ("integer", [8]),
    torch.uint8: ("integer", [8]),
    torch.bool: ("bool", [1]),
    torch.complex64: ("complex", [64]),
    torch.complex128: ("complex", [128]),
}
"""Dtype -> `type` and `precision`."""


def stored_format(dtype: torch.dtype) -> tuple[str, list[Any]]:
    """Return `type` and `precision` of a tensor as torch stores it."""
    if dtype in NUMBER_FORMATS:
        kind, precision = NUMBER_FORMATS[dtype]
        return kind, list(precision)
    return "float" if dtype.is_floating_point else "integer", [8 * dtype.itemsize]


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
