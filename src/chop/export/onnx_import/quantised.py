"""Quantised values of a file, and the grids of constants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from chop.export.onnx_import.call import Call, operator
from chop.export.onnx_import.elementwise_operators import saturated, unsaturated
from chop.export.onnx_import.layer_operators import convolved
from chop.export.onnx_import.onnx_file import BITS, TYPES

QONNX = "qonnx.custom_op.general"
DOMAINS = (QONNX, "finn.custom_op.general", "onnx.brevitas")
"""Domains of `Quant`."""


@dataclass(frozen=True)
class Grid:
    """Grid of a constant: (integer - zero_point) * scale, where `scale` broadcasts with it.

    `low` and `high` bound the integers. With `element`, the values are floats of that type.
    """

    scale: Tensor
    zero_point: int = 0
    low: int = 0
    high: int = 0
    element: str = ""

    def turned(self) -> Grid:
        """Return the grid of the transpose."""
        return replace(self, scale=self.scale.t() if self.scale.dim() == 2 else self.scale)


def bounds_of(kind: str) -> tuple[int, int]:
    """Return the smallest and the largest integer of a type."""
    bits = BITS[kind]
    return (0, 2**bits - 1) if kind.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def spread(scale: Tensor, like: Tensor, axis: int, block: int) -> Tensor:
    """Return a scale of ONNX in a shape that broadcasts with its tensor."""
    if scale.dim() == 0 or scale.numel() == 1:
        return scale.reshape(())
    if block:
        return scale.repeat_interleave(block, axis).narrow(axis, 0, like.shape[axis])
    return scale.reshape([-1 if d == axis % like.dim() else 1 for d in range(like.dim())])


@operator("DequantizeLinear")
def _dequantize(call: Call) -> Any:
    codes, scale = call.tensor(0), call.tensor(1)
    axis, block = call.attribute("axis", 1), call.attribute("block_size", 0)
    wide = spread(scale, codes, axis, block)
    if codes.dtype.itemsize == 1 and codes.is_floating_point():
        if call.scope.is_folding:
            element = "e4m3" if codes.dtype == torch.float8_e4m3fn else "e5m2"
            call.scope.note_grid(call.node.outputs[0], Grid(wide, element=element))
        return codes.to(scale.dtype) * wide
    zero = spread(call.tensor(2), codes, axis, block) if call.given(2) else None
    whole = codes.to(scale.dtype)
    values = (whole if zero is None else whole - zero.to(scale.dtype)) * wide
    if call.scope.is_folding:
        kind = call.scope.constants[call.name(0)].kind
        first = 0 if zero is None else int(zero.reshape(-1)[0])
        if kind in BITS and (zero is None or bool((zero == first).all())):
            call.scope.note_grid(call.node.outputs[0], Grid(wide, first, *bounds_of(kind)))
    return values


FLOATS = {"FLOAT8E4M3FN": torch.float8_e4m3fn, "FLOAT8E5M2": torch.float8_e5m2}


@operator("DynamicQuantizeLinear")
def _dynamic_quantize(call: Call) -> Any:
    """Return codes of 8 bits with a scale and a zero point from the extremes of the input."""
    x = call.tensor(0)
    low, high = torch.clamp(x.amin(), max=0.0), torch.clamp(x.amax(), min=0.0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, 1.0, scale)
    zero = torch.clamp(torch.round(-low / scale), 0, 255)
    codes = torch.clamp(torch.round(x / scale) + zero, 0, 255)
    return codes.to(torch.uint8), scale, zero.to(torch.uint8)


def _centred(call: Call, place: int, zero: int, axis: int) -> Tensor:
    """Return codes less their zero point, as floats: sums of up to 2**24 are exact."""
    codes = call.tensor(place).to(torch.float32)
    if not call.given(zero):
        return codes
    point = call.tensor(zero).to(torch.float32)
    return codes - (spread(point, codes, axis, 0) if point.dim() == 1 else point)


@operator("MatMulInteger")
def _matmul_integer(call: Call) -> Any:
    product = torch.matmul(_centred(call, 0, 2, -2).double(), _centred(call, 1, 3, -1).double())
    return product.to(torch.int32)


@operator("ConvInteger")
def _conv_integer(call: Call) -> Any:
    x, weight = _centred(call, 0, 2, 0).double(), _centred(call, 1, 3, 0).double()
    return convolved(call, x, weight, None).to(torch.int32)


@operator("QuantizeLinear")
def _quantize(call: Call) -> Any:
    x, scale = call.tensor(0), call.tensor(1)
    axis, block = call.attribute("axis", 1), call.attribute("block_size", 0)
    kind = call.scope.kind(call.node.outputs[0])
    if kind in FLOATS:
        rounded = saturated if call.attribute("saturate", 1) else unsaturated
        return rounded(x / spread(scale, x, axis, block), FLOATS[kind])
    if kind is None or kind not in BITS:
        raise ValueError(f"to type {kind}. Allowed: {', '.join((*BITS, *FLOATS))}")
    whole = torch.round(x / spread(scale, x, axis, block))
    if call.given(2):
        whole = whole + spread(call.tensor(2), x, axis, block).to(x.dtype)
    return whole.clamp(*bounds_of(kind)).to(TYPES[kind])


def quant_bounds(bits: float, is_signed: bool, is_narrow: bool) -> tuple[int, int]:
    """Return the smallest and the largest integer of a `Quant` of QONNX."""
    if not 1 <= bits <= 32 or bits != int(bits):
        raise ValueError(f"bit width {bits}. Allowed: whole numbers from 1 to 32")
    width = int(bits)
    if not is_signed:
        return 0, 2**width - 1 - is_narrow
    return -(2 ** (width - 1)) + is_narrow, 2 ** (width - 1) - 1


def check_rounding(call: Call) -> None:
    """Raise if a `Quant` does not round to the nearest even."""
    mode = call.attribute("rounding_mode", "ROUND")
    if mode.upper() not in ("ROUND", "HALF_EVEN"):
        raise ValueError(f"rounding_mode {mode:.40}. Allowed: ROUND, HALF_EVEN")


def _quant(call: Call) -> Any:
    check_rounding(call)
    x, scale = call.tensor(0), call.tensor(1)
    zero, bits = call.number(2), call.number(3)
    signs = bool(call.attribute("signed", 1)), bool(call.attribute("narrow", 0))
    low, high = quant_bounds(bits, *signs)
    if call.scope.is_folding and zero == int(zero):
        grid = Grid(scale if scale.numel() > 1 else scale.reshape(()), int(zero), low, high)
        call.scope.note_grid(call.node.outputs[0], grid)
    whole = torch.clamp(torch.round(x / scale + zero), low, high)
    y = (whole - zero) * scale
    return torch.where(y == 0, 0.0, y)


for _domain in DOMAINS:
    operator("Quant", "IntQuant", domain=_domain)(_quant)
