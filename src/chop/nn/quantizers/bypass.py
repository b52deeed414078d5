"""The format that changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from chop.nn.quantizers.base import Quantizer
from chop.nn.quantizers.spelling import Stem


@dataclass(frozen=True)
class Bypass(Quantizer):
    """Full precision: the tensor itself, gradient and all."""

    name: ClassVar[str] = "bypass"
    aliases: ClassVar[tuple[str, ...]] = ("float",)
    class_suffix: ClassVar[str] = "Bypass"
    is_bypass: ClassVar[bool] = True
    stem: ClassVar[Stem] = Stem("float", "float", "float", lambda q: "float")

    def represent(self, x: Tensor, noise: Tensor | None) -> Tensor:
        return x

    def __call__(self, x: Tensor) -> Tensor:
        return x

    @property
    def bits(self) -> float:
        return 32.0
