"""A number format as metadata says it, `type` and `precision`, and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from chop.nn.quantizers.base import Quantizer
from chop.nn.quantizers.bypass import Bypass
from chop.nn.quantizers.integer import Integer

TYPE_NAMES = {"integer": "fixed"}
"""Metadata says "integer" of torch's integer dtypes, so the format goes by its other name."""

FIXED_TYPES = ("fixed", "integer")
"""What `type` says of fixed point with a precision of width and fractional bits."""


def type_and_precision(quantizer: Quantizer, dtype: torch.dtype) -> tuple[str, list[Any]]:
    """What metadata says of a tensor in a format: Integer(8, 3) -> ("fixed", [8, 3])."""
    if isinstance(quantizer, Bypass):
        return "float", [8 * dtype.itemsize]
    return TYPE_NAMES.get(quantizer.name, quantizer.name), _precision(quantizer)


def _precision(quantizer: Quantizer) -> list[Any]:
    """The sizes of a format in the order of its fields; a format without sizes gives its bits."""
    values = [getattr(quantizer, f.name) for f in dataclasses.fields(quantizer) if not f.kw_only]
    sizes = [v for v in values if isinstance(v, int | tuple) and not isinstance(v, bool)]
    return sizes or [quantizer.bits]


def format_by_hand(kind: Any, precision: Any) -> Quantizer | None:
    """The format that `type` and `precision` written by hand mean: ("fixed", [8, 3]) is signed,
    rounds half to even and saturates. None where they do not name one (yet).
    """
    is_pair = isinstance(precision, list | tuple) and len(precision) == 2
    if kind not in FIXED_TYPES or not is_pair:
        return None
    return Integer(int(precision[0]), int(precision[1]))
