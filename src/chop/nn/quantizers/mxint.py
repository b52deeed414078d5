"""Microscaling integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.nn.quantizers.blocks import BlockQuantizer
from chop.nn.quantizers.code_values import onnx_integer, twos_complement
from chop.nn.quantizers.kernels import Kernel
from chop.nn.quantizers.packing import IntegerElement, PackedFormat
from chop.nn.quantizers.powers import all_ones, floor_log2, times_power
from chop.nn.quantizers.quantizer import check_between
from chop.nn.quantizers.rounding import round_to_multiple
from chop.nn.quantizers.spelling import number_stem


@dataclass(frozen=True)
class MXInt(BlockQuantizer):
    """Integers of `width` bits times 2**-(width-2), times a power of two shared by the block.

    >>> MXInt(4, block_size=4).quantize(torch.tensor([1.0, 0.30, -0.1, 1.99])).tolist()
    [1.0, 0.25, 0.0, 1.75]

    The shared power is that of the largest magnitude. The range is symmetric: the lowest code of
    two's complement is not used. Zero has no sign.
    """

    name, class_suffix = "mxint", "MXInt"
    stem = number_stem("mxint")
    wire = "mxint"
    packed_forms = (
        PackedFormat("mxint8", "mxint8", 0, IntegerElement(8, 6)),
        PackedFormat("mxint4", "mxint4", 1, IntegerElement(4, 2)),
    )
    search_settings: ClassVar = {"width": [4, 6, 8], "block_size": [16, 32]}

    width: int = 8
    exponent_width: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("width", self.width, 2, 32)
        check_between("exponent_width", self.exponent_width, 1, 8)

    @property
    def max_exponent(self) -> int:
        """Largest shared exponent; the smallest is its negative."""
        return int(2 ** (self.exponent_width - 1) - 1)

    @property
    def onnx_type(self) -> str | None:
        return onnx_integer(self.width)

    def values_by_code(self) -> Tensor:
        return twos_complement(self.width) * self.integer_step()

    def integer_step(self) -> float:
        return float(2.0 ** (2 - self.width))

    @property
    def lowest_exponent(self) -> int:
        return -self.max_exponent

    @property
    def element_bits(self) -> int:
        return self.width

    @property
    def shared_bits(self) -> int:
        return self.exponent_width

    def scale_exponent(self, largest: Tensor) -> Tensor:
        return floor_log2(largest).clamp(-self.max_exponent, self.max_exponent)

    def kernel(self) -> Kernel | None:
        exponents = (-self.max_exponent, self.max_exponent)
        ones = all_ones(self.width - 1, torch.float32)
        return self.block_kernel("block_fixed", (0, *exponents, 2 - self.width, ones, True))

    def represent_blocks(self, x: Tensor, largest: Tensor, noise: Tensor | None) -> Tensor:
        unit = self.scale_exponent(largest) - (self.width - 2)
        y = round_to_multiple(x, unit, self.rounding, noise)
        limit = times_power(largest.new_full((), all_ones(self.width - 1, x.dtype)), unit)
        y = torch.clamp(y, -limit, limit)
        return torch.where(y == 0, 0.0, y)  # two's complement has one zero
