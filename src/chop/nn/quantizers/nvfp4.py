"""NVIDIA's 4-bit floating point with two levels of scales."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from chop.nn.quantizers.blocks import BlockSize
from chop.nn.quantizers.minifloat import FLOAT_ELEMENTS, FloatGrid, round_to_float
from chop.nn.quantizers.powers import over
from chop.nn.quantizers.quantizer import check
from chop.nn.quantizers.scaled_blocks import ScaledBlocks, as_float32

BLOCK = 16
SCALE_GRID = FLOAT_ELEMENTS["e4m3"]


@dataclass(frozen=True)
class NVFP4(ScaledBlocks):
    """E2M1 floats times an E4M3 scale per block of 16, times one float32 scale per tensor.

    >>> NVFP4().quantize(torch.tensor([6.0, 1.3, -0.2, 0.7] + 12 * [0.0]))[:4].tolist()
    [6.0, 1.5, -0.0, 0.5]

    The tensor's scale is its largest magnitude over 6 · 448. The scale of a block is its largest
    magnitude over 6 and over the tensor's scale, rounded to E4M3; below half of 2**-9 it is 0, and
    so is the block. `tensor_scale` is a given scale instead of a measured one. An Inf or NaN makes
    its block NaN, or the whole tensor if its scale is measured.
    """

    name, class_suffix = "nvfp4", "NVFP4"

    tensor_scale: float | None = None
    block_size: BlockSize = field(default=BLOCK, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        scale = self.tensor_scale
        is_real = scale is None or 0 < scale < math.inf
        check(is_real, f"tensor_scale must be positive, got {scale}.")

    @property
    def grid(self) -> FloatGrid:
        return FLOAT_ELEMENTS["e2m1"]

    @property
    def compressed_type(self) -> str | None:
        return "nvfp4-pack-quantized" if self.group_columns == BLOCK else None

    @property
    def shared_bits(self) -> int:
        return 8

    def part_unit(self, rank: int, dim: int) -> int | None:
        return None if self.tensor_scale is None else super().part_unit(rank, dim)

    def tensor_scale_of(self, x: Tensor) -> Tensor:
        if self.tensor_scale is not None:
            return as_float32(x.new_full((), self.tensor_scale))
        return as_float32(over(x.abs().amax(), self.grid.limit() * SCALE_GRID.limit()))

    def stored_scales(self, largest: Tensor, tensor_scale: Tensor | None) -> Tensor:
        assert tensor_scale is not None, "nvfp4 has a tensor scale"
        ideal = over(largest, self.grid.limit()) / tensor_scale
        width, lowest = SCALE_GRID.mantissa_width, SCALE_GRID.min_exponent
        scale = round_to_float(ideal, width, lowest, "nearest_even").clamp(max=SCALE_GRID.limit())
        return torch.where(tensor_scale.isfinite(), scale, math.nan)

    def near(self, values: Tensor) -> Iterator[NVFP4]:
        # 6 * 448 * scale rounds twice, so a scale measured on `values` is up to two floats away
        yield self
        if self.tensor_scale is None:
            for direction in (math.inf, -math.inf):
                scale = self.tensor_scale_of(values).float()
                for _ in range(2):
                    scale = torch.nextafter(scale, scale.new_full((), direction))
                    yield replace(self, tensor_scale=float(scale))

    def measured_on(self, x: Tensor) -> NVFP4:
        return replace(self, tensor_scale=float(self.tensor_scale_of(x)))
