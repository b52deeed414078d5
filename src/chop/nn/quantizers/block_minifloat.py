"""Block minifloat: small floats that share an exponent bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.nn.quantizers.blocks import BlockQuantizer
from chop.nn.quantizers.code_values import float_table
from chop.nn.quantizers.kernels import Kernel
from chop.nn.quantizers.minifloat import FloatGrid, round_to_float
from chop.nn.quantizers.powers import all_ones, floor_log2, times_power
from chop.nn.quantizers.quantizer import check, check_between
from chop.nn.quantizers.spelling import float_stem


@dataclass(frozen=True)
class BlockMinifloat(BlockQuantizer):
    """Floats of `width` bits, no code special, whose exponent bias is shared by the block.

    >>> quantizer = BlockMinifloat(6, exponent_width=2, exponent_bias_width=8, block_size=4)
    >>> quantizer.quantize(torch.tensor([1.0, 0.30, -0.1, 7.5])).tolist()
    [1.0, 0.25, -0.125, 7.5]

    The bias, 0 to 2**exponent_bias_width - 1, maps the largest magnitude of the block to the top
    binade. Beyond the largest bias, elements saturate or become subnormal.
    """

    name, class_suffix = "block_minifloat", "BlockMinifloat"
    stem = float_stem("block_minifloat")
    search_settings: ClassVar = {
        "width": [6, 8],
        "exponent_width": [2, 3],
        "block_size": [16, 32],
    }

    width: int
    exponent_width: int
    exponent_bias_width: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("width", self.width, 3, 32)
        check_between("exponent_width", self.exponent_width, 1, 7)
        check_between("exponent_bias_width", self.exponent_bias_width, 1, 8)
        check(self.mantissa_width >= 1, "width must be at least exponent_width + 2.")

    @property
    def mantissa_width(self) -> int:
        """Bits after the leading one."""
        return self.width - 1 - self.exponent_width

    def values_by_code(self) -> Tensor:
        return float_table(FloatGrid(self.exponent_width, self.mantissa_width, 0, "none"))

    @property
    def lowest_exponent(self) -> int:
        return int(1 - 2**self.exponent_bias_width)

    @property
    def element_bits(self) -> int:
        return self.width

    @property
    def shared_bits(self) -> int:
        return self.exponent_bias_width

    def kernel(self) -> Kernel | None:
        top_field, m = 2**self.exponent_width - 1, self.mantissa_width
        scale = (2**23, -top_field, 1 - 2**self.exponent_bias_width, 0)  # minus the bias
        element = (1, all_ones(m + 1, torch.float32), top_field - m)
        return self.block_kernel("block_float", (m, *scale, *element))

    def represent_blocks(self, x: Tensor, largest: Tensor, noise: Tensor | None) -> Tensor:
        top_field = 2**self.exponent_width - 1
        bias = (top_field - floor_log2(largest)).clamp(0, 2**self.exponent_bias_width - 1)
        y = round_to_float(x, self.mantissa_width, 1 - bias, self.rounding, noise)
        ones = largest.new_full((), all_ones(self.mantissa_width + 1, x.dtype))
        limit = times_power(ones, top_field - bias - self.mantissa_width)
        # a limit of 0 has two signs, and compiled code may take either
        return torch.copysign(torch.clamp(y, -limit, limit), y)
