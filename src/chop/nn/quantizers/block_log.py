"""Block logarithm: powers of two that share an exponent bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.nn.quantizers.blocks import BlockQuantizer
from chop.nn.quantizers.code_values import sign_and
from chop.nn.quantizers.kernels import Kernel
from chop.nn.quantizers.logarithmic import (
    NORMAL_EXPONENTS,
    SQRT_TWO_FRACTION,
    LogRounding,
    round_log2,
)
from chop.nn.quantizers.quantizer import check_between
from chop.nn.quantizers.spelling import number_stem


@dataclass(frozen=True)
class BlockLog(BlockQuantizer, LogRounding):
    """Signed powers of two of `width` bits whose exponent bias is shared by the block.

    >>> BlockLog(4, block_size=4).quantize(torch.tensor([1.0, 0.30, -0.1, 7.5])).tolist()
    [1.0, 0.25, -0.125, 8.0]

    The bias, 0 to 2**exponent_bias_width - 1, maps the largest magnitude of the block, rounded to a
    power of two, to the top exponent. It is at most 126: the smallest value is a normal float32.
    """

    name, class_suffix = "block_log", "BlockLog"
    stem = number_stem("block_log")
    search_settings: ClassVar = {"width": [4, 6, 8], "block_size": [16, 32]}

    width: int
    exponent_bias_width: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("width", self.width, 2, 8)
        check_between("exponent_bias_width", self.exponent_bias_width, 1, 8)

    def values_by_code(self) -> Tensor:
        powers = 2.0 ** torch.arange(2 ** (self.width - 1)).double()
        if self.zero_code:
            powers[0] = 0.0
        return sign_and(powers) + 0.0  # there is one zero

    @property
    def lowest_exponent(self) -> int:
        return -self.max_bias

    @property
    def element_bits(self) -> int:
        return self.width

    @property
    def shared_bits(self) -> int:
        return self.exponent_bias_width

    @property
    def top_code(self) -> int:
        """Largest exponent field."""
        return int(2 ** (self.width - 1) - 1)

    @property
    def max_bias(self) -> int:
        """Largest shared bias."""
        return min(2**self.exponent_bias_width - 1, -NORMAL_EXPONENTS[0])

    def kernel(self) -> Kernel | None:
        carries = self.carries()
        blocks = (self.top_code, self.max_bias, SQRT_TWO_FRACTION)
        return carries and self.block_kernel("block_log", (*carries, *blocks))

    def represent_blocks(self, x: Tensor, largest: Tensor, noise: Tensor | None) -> Tensor:
        exponent = round_log2(largest, 0, "nearest_even", "log", None)
        bias = (self.top_code - exponent).clamp(0, self.max_bias)
        return self.powers(x, -bias, self.top_code - bias, noise)
