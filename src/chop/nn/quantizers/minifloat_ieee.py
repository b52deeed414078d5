"""Small floating point as in IEEE 754."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from chop.nn.quantizers.minifloat import FloatGrid, GridQuantizer, Special, bias_or_default
from chop.nn.quantizers.quantizer import check, check_between
from chop.nn.quantizers.spelling import float_stem


@dataclass(frozen=True)
class MinifloatIEEE(GridQuantizer):
    """Floats of 1 sign, `exponent_width` and the remaining bits of mantissa, with subnormals.

    >>> MinifloatIEEE(8, 4).quantize(torch.tensor([0.30, 1e9, 0.003])).tolist()
    [0.3125, 240.0, 0.00390625]

    `exponent_bias` centres the exponents if not given. `special` names the codes that are no
    numbers (see `FloatGrid`). A value that rounds beyond the largest saturates, or with
    `overflow = "special"` becomes Inf ("ieee") or NaN ("fn", "fnuz"). NaN stays NaN.
    """

    name, class_suffix = "minifloat_ieee", "MinifloatIEEE"
    stem = float_stem("minifloat")
    search_settings: ClassVar = {"width": [8, 10, 12], "exponent_width": [4, 5]}

    width: int
    exponent_width: int
    exponent_bias: int | None = None
    special: Special = "ieee"
    overflow: Literal["saturate", "special"] = "saturate"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("width", self.width, 2, 32)
        self.grid.check()
        has_code = self.overflow == "saturate" or self.special != "none"
        check(has_code, "overflow = 'special' needs a special other than 'none'.")

    @property
    def grid(self) -> FloatGrid:
        bias = bias_or_default(self.exponent_bias, self.exponent_width, self.special)
        mantissa_width = self.width - 1 - self.exponent_width
        return FloatGrid(self.exponent_width, mantissa_width, bias, self.special)

    @property
    def overflows_to_special(self) -> bool:
        return self.overflow == "special"
