"""The packed formats: how the elements of an MX format lie in bytes.

Each row of `C` consecutive values becomes `ceil(C / group)` scale bytes (E8M0: 2**(byte - 127),
255 stands for NaN) and `C` element codes. An 8-bit code is a byte; of two 4-bit codes the first
is in the low half of the byte. Add a format: a row in `PACKED_FORMATS`, its decoder in `cpu.cpp`
and `gpu.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers import MXFP, MXInt, ScaleInteger
from chop.nn.quantizers.elements import FLOAT_ELEMENTS
from chop.nn.quantizers.minifloat import FloatGrid
from chop.nn.quantizers.powers import floor_log2, times_power
from chop.registry import Registry

GROUP_SIZES = (16, 32, 64, 128)
SCALE_BIAS = 127
SCALE_NAN = 255
REAL_SCALE_BYTES = 4


@dataclass(frozen=True)
class IntegerElement:
    """Two's complement of `bits` bits, in units of 2**-shift."""

    bits: int
    shift: int
    """Binary places: an element is its code over 2**shift."""

    def encode(self, values: Tensor) -> Tensor:
        """Codes (uint8) of values that are elements; NaN becomes code 0."""
        whole = times_power(values.nan_to_num(nan=0.0), self.shift).to(torch.int16)
        return (whole & (2**self.bits - 1)).to(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        """Values (float32) of codes."""
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
        """Codes (uint8) of values that are elements; NaN becomes code 0."""
        known = values.nan_to_num(nan=0.0)
        width, lowest = self.grid.mantissa_width, self.grid.min_exponent
        exponent = floor_log2(known).clamp(min=lowest)
        # With its leading one, a normal mantissa carries into the exponent field by itself.
        mantissa = times_power(known.abs(), width - exponent).to(torch.int32)
        magnitude = ((exponent - lowest) << width) + mantissa
        return (magnitude | (known.signbit().int() << (self.bits - 1))).to(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        """Values (float32) of codes."""
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
    """A format of groups and its layout in bytes."""

    name: str
    element: IntegerElement | FloatElement
    quantizer: Callable[[int], MXInt | MXFP | ScaleInteger]
    """The format's definition, by group size."""
    scale_bytes: int = 1
    """1: the exponent of a power of two. 4: a float32, low byte first."""

    @property
    def has_real_scales(self) -> bool:
        """Whether scales are float32."""
        return self.scale_bytes == REAL_SCALE_BYTES

    @property
    def per_byte(self) -> int:
        """Elements in a byte."""
        return 8 // self.element.bits

    def code_bytes(self, columns: int) -> int:
        """Bytes of the codes of a row."""
        return -(-columns // self.per_byte)

    def bits(self, group_size: int) -> float:
        """Bits an element takes, its share of the scale included."""
        return self.element.bits + 8 * self.scale_bytes / group_size

    def row_scale_bytes(self, columns: int, group_size: int) -> int:
        """Bytes of the scales of a row."""
        return groups_of(columns, group_size) * self.scale_bytes


def groups_of(columns: int, group_size: int) -> int:
    """Scales of a row."""
    return -(-columns // group_size)


PACKED_FORMATS: Registry[PackedFormat] = Registry("packed format")
"""The MX formats."""
for _row in (
    PackedFormat("mxint8", IntegerElement(8, 6), lambda n: MXInt(8, block_size=n)),
    PackedFormat("mxint4", IntegerElement(4, 2), lambda n: MXInt(4, block_size=n)),
    PackedFormat(
        "mxfp8", FloatElement(FLOAT_ELEMENTS["e4m3"]), lambda n: MXFP("e4m3", block_size=n)
    ),
    PackedFormat(
        "mxfp4", FloatElement(FLOAT_ELEMENTS["e2m1"]), lambda n: MXFP("e2m1", block_size=n)
    ),
):
    PACKED_FORMATS.register(_row.name, _row)


def _group_integer(width: int) -> Callable[[int], ScaleInteger]:
    return lambda n: ScaleInteger(width, granularity="group", group_size=n)


INTEGER_FORMATS: Registry[PackedFormat] = Registry("packed integer format")
"""Integers with a real scale for each group."""
for _row in (
    PackedFormat("int8_group", IntegerElement(8, 0), _group_integer(8), REAL_SCALE_BYTES),
    PackedFormat("int4", IntegerElement(4, 0), _group_integer(4), REAL_SCALE_BYTES),
):
    INTEGER_FORMATS.register(_row.name, _row)


def packed_format(name: str) -> PackedFormat | None:
    """The format of that name; None where there is none."""
    tables = (PACKED_FORMATS, INTEGER_FORMATS)
    return next((table[name] for table in tables if name in table), None)


def check_group_size(group_size: int, where: str, *, is_integer: bool = False) -> None:
    """Refuse a group size that the kernels do not have."""
    if isinstance(group_size, int):
        is_power = group_size >= GROUP_SIZES[0] and group_size & (group_size - 1) == 0
        if group_size in GROUP_SIZES or (is_integer and is_power):
            return
    allowed = ", ".join(map(str, GROUP_SIZES))
    more = " and higher powers of two" if is_integer else ""
    raise ConfigError(f"{where}: group_size {group_size} is not allowed. Allowed: {allowed}{more}.")
