"""Full precision, as a format."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chop.nn.quantizers.quantizer import Quantizer
from chop.nn.quantizers.spelling import Stem


@dataclass(frozen=True)
class Bypass(Quantizer):
    """Full precision: returns the tensor itself, with its gradient."""

    name, class_suffix = "bypass", "Bypass"
    maps_elements = True
    aliases = ("float",)
    is_bypass, bits = True, 32.0
    stem = Stem("float", "float", "float", lambda q: "float")

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        return x

    def __call__(self, x: Tensor) -> Tensor:
        return x
