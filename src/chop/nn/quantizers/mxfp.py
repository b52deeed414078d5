"""Microscaling floating point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers.blocks import BLOCK_SIZE, BlockQuantizer
from chop.nn.quantizers.code_values import float_table
from chop.nn.quantizers.kernels import Kernel
from chop.nn.quantizers.minifloat import (
    FLOAT_ELEMENTS,
    FloatGrid,
    element_from_widths,
    round_to_float,
)
from chop.nn.quantizers.packing import FloatElement, PackedFormat
from chop.nn.quantizers.powers import floor_log2, times_power
from chop.nn.quantizers.spelling import Stem

ScaleRule = Literal["floor", "ceil", "rceil", "even"]
SCALE_BITS = 8
SCALE_LIMIT = 127  # E8M0 has exponents from -127 to 127


class Carry(NamedTuple):
    """Mantissa (1 to 2) of the largest magnitude from which the scale is one power higher."""

    mantissa: float
    is_included: bool


CARRIES: dict[str, Callable[[FloatGrid], Carry]] = {
    "floor": lambda grid: Carry(2.0, True),
    "ceil": lambda grid: Carry(1.0, False),
    "rceil": lambda grid: Carry(grid.limit() / 2.0**grid.max_exponent, False),
    "even": lambda grid: Carry(2 - 2.0 ** -(grid.mantissa_width + 1), True),
}


COMPRESSED = {
    "e2m1": "mxfp4-pack-quantized",
    "e2m3": "mxfp6-pack-quantized",
    "e4m3": "mxfp8-quantized",
}
"""Format of compressed-tensors for each element."""
DEFAULT_ELEMENTS = {"8": "e4m3", "6": "e3m2", "4": "e2m1"}
"""Element of a spelling that has only the bits."""


def _read_element(parts: Mapping[str, str]) -> dict[str, Any]:
    element = parts.get("element", DEFAULT_ELEMENTS[parts["bits"]])
    grid = FLOAT_ELEMENTS.get(element)
    bits = 0 if grid is None else 1 + grid.exponent_width + grid.mantissa_width
    if str(bits) != parts["bits"]:
        raise ConfigError(f"mxfp{parts['bits']} has no element '{element}'.")
    return {"element": element}


@dataclass(frozen=True)
class MXFP(BlockQuantizer):
    """Small floats times a power of two shared by the block.

    >>> MXFP("e2m1", block_size=4).quantize(torch.tensor([1.0, 0.30, -0.1, 7.5])).tolist()
    [1.0, 0.5, -0.0, 6.0]

    `element` is E4M3, E5M2, E3M2, E2M3 or E2M1. The shared exponent is that of the largest
    magnitude less that of the largest element ("floor": the largest may saturate), or by
    `scale_rule` one more: "ceil" if it is not a power of two, "rceil" if it would saturate, "even"
    if rounding it to the element's precision carries.
    """

    name, class_suffix = "mxfp", "MXFP"
    stem = Stem(
        "mxfp<bits>[_<element>]",
        "mxfp4",
        r"mxfp(?P<bits>[468])(_(?P<element>e\dm\d))?",
        lambda q: (
            f"mxfp{q.element_bits}" + f"_{q.element}" * (q.element not in DEFAULT_ELEMENTS.values())
        ),
        _read_element,
    )
    packed_forms = (
        PackedFormat("mxfp8", "mxfp8", 2, FloatElement(FLOAT_ELEMENTS["e4m3"])),
        PackedFormat("mxfp4", "mxfp4", 3, FloatElement(FLOAT_ELEMENTS["e2m1"])),
    )
    search_settings: ClassVar = {"element": ["e2m1", "e2m3", "e3m2", "e4m3", "e5m2"]}
    legacy = (*BlockQuantizer.legacy, "exponent_width", "frac_width")

    element: Literal["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"] = "e4m3"
    scale_rule: ScaleRule = "floor"

    @classmethod
    def modern(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        return super().modern(element_from_widths(settings))

    @property
    def grid(self) -> FloatGrid:
        """Values of the element."""
        return FLOAT_ELEMENTS[self.element]

    @property
    def gguf_type(self) -> str | None:
        is_mxfp4 = self.element == "e2m1" and self.group_columns == BLOCK_SIZE
        return "MXFP4" if is_mxfp4 else None

    @property
    def compressed_type(self) -> str | None:
        return COMPRESSED.get(self.element) if self.group_columns == BLOCK_SIZE else None

    @property
    def onnx_type(self) -> str | None:
        return "INT8" if self.integer_step() else None

    def values_by_code(self) -> Tensor:
        return float_table(self.grid)

    def integer_step(self) -> float | None:
        """Return the step of E2M1, multiples of a half up to 6; other elements need more bits."""
        return self.grid.tiny if self.element == "e2m1" else None

    @property
    def lowest_exponent(self) -> int:
        return -SCALE_LIMIT

    @property
    def element_bits(self) -> int:
        return 1 + self.grid.exponent_width + self.grid.mantissa_width

    @property
    def shared_bits(self) -> int:
        return SCALE_BITS

    def scale_exponent(self, largest: Tensor) -> Tensor:
        """Return the shared exponent, limited so that float32 holds the elements."""
        exponent = floor_log2(largest)
        first, is_included = CARRIES[self.scale_rule](self.grid)
        mantissa = times_power(largest, -exponent)
        carries = mantissa >= first if is_included else mantissa > first
        raised = exponent + carries.to(exponent.dtype)
        top = self.grid.max_exponent
        return (raised - top).clamp(-SCALE_LIMIT, SCALE_LIMIT - top)

    def kernel(self) -> Kernel | None:
        grid, top = self.grid, self.grid.max_exponent
        first, is_included = CARRIES[self.scale_rule](grid)
        fraction = (first - 1) * 2**23 + (not is_included)
        scale = (fraction, -top, -SCALE_LIMIT, SCALE_LIMIT - top)
        element = (grid.min_exponent, grid.limit(), 0)
        return self.block_kernel("block_float", (grid.mantissa_width, *scale, *element))

    def represent_blocks(self, x: Tensor, largest: Tensor, noise: Tensor | None) -> Tensor:
        scale, grid = self.scale_exponent(largest), self.grid
        smallest = scale + grid.min_exponent
        y = round_to_float(x, grid.mantissa_width, smallest, self.rounding, noise)
        limit = times_power(largest.new_full((), grid.limit()), scale)
        return torch.clamp(y, -limit, limit)
