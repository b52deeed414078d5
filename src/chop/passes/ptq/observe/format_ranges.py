"""Ranges of number formats: those an observer can select, and the settings that set them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.quantizers import Quantizer, ScaleInteger
from chop.nn.quantizers.scale_integer import SMALLEST_SCALE

CLIPS = tuple(1 - i / 80 for i in range(76))
BINADES = (1.0, 0.5, 0.25, 0.125, 0.0625)
"""Shares of a range to try; ranges that are powers of two differ only by halving."""
BIASES = range(-100, 150)
"""Exponent biases to try: all that float32 can hold for the formats of this project."""


class RangedFormat(Protocol):
    """A format and the setting that determines its range.

    Ranges are pairs of tensors, `low` and `high`, with one element per slot.
    """

    @property
    def clips(self) -> tuple[float, ...]:
        """Shares of a range that make a difference."""

    def reached(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the range that is not clipped if `low` and `high` are requested."""

    def represent(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Return the values `x`, (slots, values), in the format."""

    def settings(self, low: Tensor, high: Tensor) -> dict[str, Any]:
        """Return the format's settings for the range; scales as a tensor."""


@dataclass(frozen=True)
class ScaledRange:
    """Integers times a scale; unsigned ones for a whole tensor also have a zero point."""

    format: ScaleInteger

    clips = CLIPS

    @property
    def has_zero_point(self) -> bool:
        """True if the range need not be symmetric."""
        return not self.format.is_signed and self.format.granularity == "tensor"

    def reached(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        if self.has_zero_point:
            return low, high
        if not self.format.is_signed:
            return torch.zeros_like(low), high
        return _symmetric(low, high)

    def scale(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the scale that reaches the range."""
        bottom, top = self.reached(low, high)
        span = top - bottom if self.has_zero_point else top  # unsigned integers begin at 0
        return (span / self.format.integers[1]).clamp(min=SMALLEST_SCALE)

    def zero_point(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the integer that represents zero."""
        if not self.has_zero_point:
            return torch.zeros_like(low)
        return (-low / self.scale(low, high)).round().clamp(*self.format.integers)

    def represent(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        scale, zero = self.scale(low, high)[:, None], self.zero_point(low, high)[:, None]
        bottom, top = self.format.integers
        return ((x / scale).round() + zero).clamp(bottom, top).sub(zero) * scale

    def settings(self, low: Tensor, high: Tensor) -> dict[str, Any]:
        settings: dict[str, Any] = {"scale": self.scale(low, high)}
        if self.has_zero_point:
            settings["zero_point"] = int(self.zero_point(low, high)[0])
        return settings


@dataclass(frozen=True)
class PowerRange:
    """A format with one range for the whole tensor, from a series of powers of two.

    `setting`: the integer that moves the range, `frac_width` or `exponent_bias`.
    """

    format: Quantizer
    setting: str

    clips = BINADES

    def reached(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        return _symmetric(low, high)

    def value(self, low: Tensor, high: Tensor) -> int:
        """Return the setting of the narrowest range that includes both, or of the widest."""
        largest = float(torch.maximum(-low, high).max()) or 1.0
        reaches = _reaches(self.format, self.setting)
        enough = {value: reach for value, reach in reaches.items() if reach >= largest}
        if not enough:
            return max(reaches, key=reaches.__getitem__)
        return min(enough, key=enough.__getitem__)

    def represent(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return _with(self.format, self.setting, self.value(low, high)).quantize(x)

    def settings(self, low: Tensor, high: Tensor) -> dict[str, Any]:
        return {self.setting: self.value(low, high)}


def _symmetric(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    largest = torch.maximum(-low, high)
    return -largest, largest


@functools.cache
def _reaches(form: Quantizer, setting: str) -> dict[int, float]:
    """Return the largest value of the format for each allowed value of the setting."""
    fixed = form.fixed_point
    if fixed is not None:
        # a power of two saturates by half a step, and that step is worth a bit everywhere else
        top = fixed.width - fixed.is_signed
        return {f: 2.0 ** (top - f) for f in range(-90, 127)}
    reaches = {}
    for value in BIASES:
        try:
            reaches[value] = _with(form, setting, value).range[1]
        except ConfigError:  # values that float32 cannot hold
            continue
    return {value: reach for value, reach in reaches.items() if math.isfinite(reach)}


def _with(form: Quantizer, setting: str, value: Any) -> Quantizer:
    changed: dict[str, Any] = {setting: value}
    return dataclasses.replace(form, **changed)


def ranged(form: Quantizer) -> RangedFormat | None:
    """Return the format with a range to select; None if it has none, or measures each tensor."""
    if form.scaled is not None:
        return ScaledRange(form.scaled)
    names = {f.name for f in dataclasses.fields(form)}
    for setting in ("frac_width", "exponent_bias"):
        if setting in names and form.blocks is None:
            return PowerRange(form, setting)
    return None


def slot_rows(form: Quantizer, x: Tensor, *, by_row: bool) -> Tensor:
    """Return `x` as (slots, values), where each row has one range.

    For groups, each position along the last dimension is a slot; `by_row`, every row has its own
    groups, as in a weight.
    """
    x = torch.where(torch.isfinite(x), x, 0.0)
    scaled = form.scaled
    if scaled is None or scaled.granularity == "tensor" or x.dim() == 0:
        return x.reshape(1, -1)
    if scaled.granularity == "channel":
        return x.movedim(scaled.axis, 0).flatten(1) if x.dim() > 1 else x[:, None]
    rows = x.reshape(-1, x.shape[-1])
    short = -rows.shape[1] % scaled.group_size
    padded = torch.nn.functional.pad(rows, (0, short))
    groups = padded.reshape(len(rows), -1, scaled.group_size)
    return groups.flatten(0, 1) if by_row else groups.transpose(0, 1).flatten(1)


def rules_of(form: Quantizer) -> Iterator[Quantizer]:
    """Yield the format with each rule for the shared exponent of a block."""
    if hasattr(form, "scale_rule"):
        for rule in ("floor", "ceil", "rceil", "even"):
            yield _with(form, "scale_rule", rule)
