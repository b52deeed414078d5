"""The two 8-bit floating-point formats of the Open Compute Project, without a scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from chop.nn.quantizers.minifloat import (
    FLOAT_ELEMENTS,
    FloatGrid,
    GridQuantizer,
    element_from_widths,
)
from chop.nn.quantizers.spelling import Stem

TORCH_TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
ONNX_TYPES = {"e4m3": "FLOAT8E4M3FN", "e5m2": "FLOAT8E5M2"}


@dataclass(frozen=True)
class FP8(GridQuantizer):
    """E4M3 (largest 448) or E5M2 (largest 57344).

    >>> FP8("e4m3").quantize(torch.tensor([0.30, 1e9])).tolist()
    [0.3125, 448.0]

    A value that rounds beyond the largest saturates, or with `overflow = "special"` becomes NaN
    (E4M3 has no Inf) or Inf (E5M2).
    """

    name, class_suffix = "fp8", "FP8"
    stem = Stem(
        "fp8_<element>",
        "fp8_e4m3",
        r"fp8_(?P<element>e4m3|e5m2)",
        lambda q: f"fp8_{q.element}",
        dict,
    )
    search_settings: ClassVar = {"element": ["e4m3", "e5m2"]}
    legacy = ("exponent_width", "frac_width")

    element: Literal["e4m3", "e5m2"] = "e4m3"
    overflow: Literal["saturate", "special"] = "saturate"

    @classmethod
    def modern(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        return element_from_widths(settings)

    @property
    def grid(self) -> FloatGrid:
        return FLOAT_ELEMENTS[self.element]

    @property
    def float_dtype(self) -> torch.dtype:
        return TORCH_TYPES[self.element]

    @property
    def compressed_type(self) -> str | None:
        return "float-quantized" if self.element == "e4m3" else None

    @property
    def onnx_type(self) -> str:
        return ONNX_TYPES[self.element]

    @property
    def overflows_to_special(self) -> bool:
        return self.overflow == "special"
