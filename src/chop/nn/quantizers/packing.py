"""Packed layouts: element codes and group scales in bytes.

A row of `C` values becomes `ceil(C / group)` scales and `C` element codes. A scale is a byte (E8M0:
2**(byte - 127), 255 is NaN) or a float32. The first of two 4-bit codes is in the low half of a
byte. To add a layout: a row in `packed_forms` of the format, a decoder in `cpu.cpp` and `gpu.py`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chop.nn.quantizers.formats import parse_format
from chop.nn.quantizers.powers import floor_log2, times_power

if TYPE_CHECKING:
    from chop.nn.quantizers.minifloat import FloatGrid
    from chop.nn.quantizers.quantizer import Quantizer

REAL_SCALE_BYTES = 4


@dataclass(frozen=True)
class IntegerElement:
    """Two's complement of `bits` bits, in units of 2**-shift."""

    bits: int
    shift: int
    """Binary places: an element is its code over 2**shift."""

    def encode(self, values: Tensor) -> Tensor:
        """Return the codes (uint8) of values that are elements; NaN becomes code 0."""
        whole = times_power(values.nan_to_num(nan=0.0), self.shift).to(torch.int16)
        return (whole & (2**self.bits - 1)).to(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the values (float32) of codes."""
        high = 2 ** (self.bits - 1)
        return ((codes.to(torch.int16) ^ high) - high).float() * 2.0**-self.shift


@dataclass(frozen=True)
class FloatElement:
    """Sign, exponent and mantissa of a small float."""

    grid: FloatGrid

    @property
    def bits(self) -> int:
        """Width of a code."""
        return 1 + self.grid.exponent_width + self.grid.mantissa_width

    @property
    def shift(self) -> int:
        """Binary places: an element is an integer over 2**shift."""
        return self.grid.mantissa_width - self.grid.min_exponent

    def encode(self, values: Tensor) -> Tensor:
        """Return the codes (uint8) of values that are elements; NaN becomes code 0."""
        numbers = values.nan_to_num(nan=0.0)
        width, lowest = self.grid.mantissa_width, self.grid.min_exponent
        exponent = floor_log2(numbers).clamp(min=lowest)
        # With its leading one, a normal mantissa carries into the exponent field by itself.
        mantissa = times_power(numbers.abs(), width - exponent).to(torch.int32)
        magnitude = ((exponent - lowest) << width) + mantissa
        return (magnitude | (numbers.signbit().int() << (self.bits - 1))).to(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the values (float32) of codes."""
        width, lowest = self.grid.mantissa_width, self.grid.min_exponent
        magnitude = codes.int() & (2 ** (self.bits - 1) - 1)
        field, fraction = magnitude >> width, magnitude & (2**width - 1)
        is_normal = field > 0
        mantissa = torch.where(is_normal, fraction + 2**width, fraction).float()
        values = times_power(mantissa, torch.where(is_normal, field - 1, 0) + lowest - width)
        if self.grid.special == "fn":
            values = torch.where(magnitude == 2 ** (self.bits - 1) - 1, torch.nan, values)
        return torch.where(codes >> (self.bits - 1) == 1, -values, values)


@dataclass(frozen=True)
class PackedFormat:
    """Layout in bytes of a format whose groups share a scale."""

    name: str
    stem: str
    """Spelling of the format without its group size."""
    kernel_code: int
    """Number of the format in the tables of the kernels (`cpu.cpp`, `gpu.py`)."""
    element: IntegerElement | FloatElement
    scale_bytes: int = 1
    """1: the exponent of a power of two. 4: a float32, low byte first."""

    def quantizer(self, group_size: int) -> Quantizer:
        """Return the format of groups of `group_size` elements."""
        return _quantizer(self.stem, group_size)

    @property
    def has_real_scales(self) -> bool:
        """True if scales are float32."""
        return self.scale_bytes == REAL_SCALE_BYTES

    @property
    def per_byte(self) -> int:
        """Elements in a byte."""
        return 8 // self.element.bits

    def code_bytes(self, columns: int) -> int:
        """Return the bytes of the codes of a row."""
        return -(-columns // self.per_byte)

    def bits(self, group_size: int) -> float:
        """Return the bits per element, with its share of the scale."""
        return self.element.bits + 8 * self.scale_bytes / group_size

    def row_scale_bytes(self, columns: int, group_size: int) -> int:
        """Return the bytes of the scales of a row."""
        return groups_of(columns, group_size) * self.scale_bytes


@functools.cache
def _quantizer(stem: str, group_size: int) -> Quantizer:
    return parse_format(f"{stem}/{group_size}")


def groups_of(columns: int, group_size: int) -> int:
    """Return the number of scales of a row."""
    return -(-columns // group_size)
