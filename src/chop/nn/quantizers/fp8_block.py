"""8-bit floating point with a float32 scale per tile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch

from chop.nn.quantizers.blocks import BlockSize
from chop.nn.quantizers.minifloat import FLOAT_ELEMENTS, FloatGrid
from chop.nn.quantizers.scaled_blocks import ScaledBlocks

TILE = (128, 128)


@dataclass(frozen=True)
class FP8Block(ScaledBlocks):
    """E4M3 or E5M2 floats times a float32 scale per tile of 128 x 128.

    >>> FP8Block(block_size=4).quantize(torch.tensor([448.0, 0.30, 1.0, -0.7])).tolist()
    [448.0, 0.3125, 1.0, -0.6875]

    The scale of a tile is its largest magnitude over the largest float (448 or 57344).
    """

    name, class_suffix = "fp8_block", "FP8Block"
    search_settings: ClassVar = {"element": ["e4m3", "e5m2"]}

    element: Literal["e4m3", "e5m2"] = "e4m3"
    block_size: BlockSize = field(default=TILE, kw_only=True)

    @property
    def grid(self) -> FloatGrid:
        return FLOAT_ELEMENTS[self.element]

    @property
    def compressed_type(self) -> str | None:
        is_tiled = self.tile[0] > 1 and self.tile[1] > 1
        return "float-quantized" if self.element == "e4m3" and is_tiled else None

    @property
    def shared_bits(self) -> int:
        return torch.finfo(torch.float32).bits
