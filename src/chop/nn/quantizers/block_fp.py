"""Block floating point: integers that share an exponent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.nn.quantizers.blocks import BlockQuantizer
from chop.nn.quantizers.code_values import onnx_integer, sign_and
from chop.nn.quantizers.kernels import Kernel
from chop.nn.quantizers.minifloat import bias_or_default
from chop.nn.quantizers.powers import all_ones, floor_log2, times_power
from chop.nn.quantizers.quantizer import check_between
from chop.nn.quantizers.rounding import round_to_multiple
from chop.nn.quantizers.spelling import number_stem


@dataclass(frozen=True)
class BlockFP(BlockQuantizer):
    """Sign and `width` - 1 bits of magnitude, times a power of two shared by the block.

    >>> BlockFP(4, 8, block_size=4).quantize(torch.tensor([1.0, 0.30, -0.1, 0.9])).tolist()
    [1.0, 0.25, -0.0, 1.0]

    The shared exponent e, of `exponent_width` bits and `exponent_bias`, is the smallest with the
    largest magnitude below 2**e; elements are multiples of 2**(e - width + 1).
    """

    name, class_suffix = "block_fp", "BlockFP"
    stem = number_stem("block_fp")
    search_settings: ClassVar = {"width": [4, 6, 8], "block_size": [16, 32]}

    width: int
    exponent_width: int = 8
    exponent_bias: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("width", self.width, 2, 32)
        check_between("exponent_width", self.exponent_width, 1, 8)
        low, high = self.exponents
        check_between("exponent_bias", -low, 2**self.exponent_width - 129, 149)
        assert high <= 128, f"largest exponent {high}"

    @property
    def exponents(self) -> tuple[int, int]:
        """Smallest and largest shared exponent."""
        bias = bias_or_default(self.exponent_bias, self.exponent_width)
        return -bias, 2**self.exponent_width - 1 - bias

    @property
    def onnx_type(self) -> str | None:
        return onnx_integer(self.width)

    def values_by_code(self) -> Tensor:
        return sign_and(torch.arange(2 ** (self.width - 1)).double() * self.integer_step())

    def integer_step(self) -> float:
        return float(2.0 ** (1 - self.width))

    @property
    def lowest_exponent(self) -> int:
        return self.exponents[0]

    @property
    def element_bits(self) -> int:
        return self.width

    @property
    def shared_bits(self) -> int:
        return self.exponent_width

    def kernel(self) -> Kernel | None:
        ones = all_ones(self.width - 1, torch.float32)
        return self.block_kernel("block_fixed", (1, *self.exponents, 1 - self.width, ones, False))

    def represent_blocks(self, x: Tensor, largest: Tensor, noise: Tensor | None) -> Tensor:
        exponent = (floor_log2(largest) + 1).clamp(*self.exponents)
        unit = exponent - (self.width - 1)
        y = round_to_multiple(x, unit, self.rounding, noise)
        limit = times_power(largest.new_full((), all_ones(self.width - 1, x.dtype)), unit)
        return torch.clamp(y, -limit, limit)
