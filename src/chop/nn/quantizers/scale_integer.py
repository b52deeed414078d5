"""Integers times a real scale."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers.blocks import join, split
from chop.nn.quantizers.code_values import onnx_integer, whole_values
from chop.nn.quantizers.packing import REAL_SCALE_BYTES, IntegerElement, PackedFormat
from chop.nn.quantizers.quantizer import Bound, RoundingQuantizer, check, check_between
from chop.nn.quantizers.rounding import ROUNDINGS
from chop.nn.quantizers.spelling import Stem, read_sign

GGUF_BLOCK = 32  # elements that share a scale in Q8_0 and Q4_0
SMALLEST_SCALE = 2.0**-126  # smallest normal float32
STORED: Literal["stored"] = "stored"


@dataclass(frozen=True)
class ScaleInteger(RoundingQuantizer):
    """(q - zero_point) * scale with integers q of `width` bits.

    >>> ScaleInteger(8, scale=0.1).quantize(torch.tensor([0.32, 100.0])).tolist()
    [0.30000001192092896, 12.699999809265137]

    q = clamp(round(x / scale) + zero_point): a true division, in the precision of x. `scale` is one
    number, one per channel along `axis`, or one per group of `group_size` along the last dimension.
    By default it is the largest magnitude over the largest integer; an Inf or NaN then makes all
    elements with its scale NaN. `scale = "stored"` reads the scales that calibration or training
    stored in the layer (`weight_scale`). `narrow` leaves out the lowest signed integer.
    """

    name, class_suffix = "scale_integer", "ScaleInteger"
    stem = Stem(
        "[u]int<width>",
        "int8",
        r"(?P<u>u)?int(?P<width>\d{1,4})",
        lambda q: "u" * (not q.is_signed) + f"int{q.width}",
        read_sign,
    )
    group_grammar = "[/<group_size> or /channel]"
    packed_forms = (
        PackedFormat("int8_group", "int8", 4, IntegerElement(8, 0), REAL_SCALE_BYTES),
        PackedFormat("int4", "int4", 5, IntegerElement(4, 0), REAL_SCALE_BYTES),
    )
    search_settings: ClassVar = {"width": [4, 6, 8]}

    width: int = 8
    scale: float | tuple[float, ...] | Literal["stored"] | None = None
    granularity: Literal["tensor", "channel", "group"] = "tensor"
    axis: int = 0
    group_size: int = 128
    zero_point: int = 0
    is_signed: bool = True
    narrow: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("width", self.width, 2, 16)
        check(self.group_size > 0, f"group_size must be positive, got {self.group_size}.")
        fixed = self.scale if isinstance(self.scale, float | int | tuple) else 1.0
        scales = fixed if isinstance(fixed, tuple) else (fixed,)
        check(all(0 < s < math.inf for s in scales), f"scale must be positive, got {self.scale}.")
        one_scale = self.granularity != "tensor" or not isinstance(self.scale, tuple)
        check(one_scale, "scale must be one number for granularity = 'tensor'.")
        has_scale = self.scale is not None or self.zero_point == 0
        check(has_scale, "zero_point needs a given scale.")
        check_between("zero_point", self.zero_point, *self.integers)
        is_fixed = not self.is_stored or self.rounding != "stochastic"
        check(is_fixed, "scale = 'stored' and rounding = 'stochastic' exclude each other.")

    @property
    def group_text(self) -> str:
        return {"tensor": "", "group": str(self.group_size)}.get(self.granularity, "channel")

    @classmethod
    def read_group(cls, text: str) -> dict[str, Any]:
        if text in ("tensor", "channel"):
            return {"granularity": text}
        if not re.fullmatch(r"[0-9]+", text):
            raise ConfigError(f"'/{text}' is not a group size, such as '/128', or '/channel'.")
        return {"granularity": "group", "group_size": int(text)}

    @property
    def is_stored(self) -> bool:
        return self.scale == STORED

    @property
    def scaled(self) -> ScaleInteger:
        return self

    @property
    def group_columns(self) -> int | None:
        return self.group_size if self.granularity == "group" else None

    def part_unit(self, rank: int, dim: int) -> int | None:
        """Return the unit of parts; stored scales are split with their operand."""
        if self.is_random:
            return None
        if isinstance(self.scale, float):
            return 1
        is_listed = isinstance(self.scale, tuple)
        if self.granularity == "group":
            unit = None if is_listed else self.group_size
            return unit if dim == rank - 1 else 1
        if self.is_stored:
            return 1
        is_channel = self.granularity == "channel" and dim == self.axis % rank
        return 1 if is_channel != is_listed else None

    @property
    def gguf_type(self) -> str | None:
        is_plain = self.is_signed and self.zero_point == 0 and self.group_columns == GGUF_BLOCK
        return {8: "Q8_0", 4: "Q4_0"}.get(self.width) if is_plain else None

    @property
    def onnx_type(self) -> str | None:
        return onnx_integer(self.width, is_signed=self.is_signed)

    def values_by_code(self) -> Tensor:
        return whole_values(self.width, is_signed=self.is_signed) - self.zero_point

    @property
    def integers(self) -> tuple[int, int]:
        """Smallest and largest integer."""
        high = 2 ** (self.width - self.is_signed) - 1
        return (-high - (not self.narrow) if self.is_signed else 0), high

    @property
    def bits(self) -> float:
        return float(self.width)

    def clip_range(self, x: Tensor) -> tuple[Bound, Bound] | None:
        if self.ste == "identity" or self.scale is None or self.is_stored:
            return None
        low, high = (q - self.zero_point for q in self.integers)
        scale = self.scale if isinstance(self.scale, float) else self.scales_of(x)
        return low * scale, high * scale

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        return self.represent_at(x, self.scales_of(x), self.noise_for(x, noise))

    def represent_at(self, x: Tensor, scale: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the values of `x` at scales that broadcast with it."""
        q = ROUNDINGS[self.rounding](x / scale, noise) + self.zero_point
        y = (q.clamp(*self.integers) - self.zero_point) * scale
        return torch.where(y == 0, 0.0, y)

    def scales_of(self, x: Tensor) -> Tensor:
        """Return the scales as a tensor that broadcasts with `x`."""
        if self.is_stored:
            raise ConfigError(
                "scale_integer: scale = 'stored' is the layer's to apply: its scales are not here."
            )
        if self.scale is None:
            return self._measured(x)
        if isinstance(self.scale, float):
            return x.new_full((), self.scale)
        axis = -1 if self.granularity == "group" else self.axis
        scales = x.new_tensor(self.scale)
        if self.granularity == "group":
            scales = scales.repeat_interleave(self.group_size)[: x.shape[-1]]
        if scales.numel() != x.shape[axis]:
            raise ConfigError(
                f"scale_integer: {len(self.scale)} scales do not fit dimension {axis} "
                f"of size {x.shape[axis]} ({self.granularity}s)."
            )
        return scales.reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])

    def _measured(self, x: Tensor) -> Tensor:
        """Return the largest magnitude per tensor, channel or group over the largest integer."""
        magnitude = x.abs()
        if self.granularity == "tensor" or x.dim() == 0:
            largest = magnitude.amax()
        elif self.granularity == "channel":
            others = [d for d in range(x.dim()) if d != self.axis % x.dim()]
            largest = magnitude.amax(others, keepdim=True) if others else magnitude
        else:
            rows = torch.atleast_2d(magnitude)
            groups = split(rows, (1, self.group_size))
            largest = join(groups.amax(-1, keepdim=True).expand_as(groups), rows.shape)
            largest = largest.reshape(x.shape)
        return (largest / self.integers[1]).clamp(min=SMALLEST_SCALE)
