"""Elementwise arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from chop.ir.ops.by_name import tensor_op
from chop.ir.ops.compute import computes
from chop.ir.ops.row import IMPLICIT_FUNC, Op


def _elementwise(name: str, names: str = "", **columns: Any) -> Op:
    return tensor_op(name, names, flops_per_output=1, **{"dims": "elementwise"} | columns)


def _python_or_torch(
    python: Callable[..., Any], of_torch: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that calls the operator, or torch's function if there are options."""

    def call(input: Any, other: Any, **options: Any) -> Any:
        return of_torch(input, other, **options) if options else python(input, other)

    return call


_ADD = _python_or_torch(operator.add, torch.add)
_SUB = _python_or_torch(operator.sub, torch.sub)
_CLAMP, _LUT = "fixed_clamp", "fixed_lut"
_MUL = _python_or_torch(operator.mul, torch.mul)

ROWS = (
    _elementwise("add", "add iadd add_", compute=computes("input* other*", _ADD), rtl="fixed_add"),
    _elementwise(
        "sub",
        "sub subtract isub sub_ rsub",
        compute=computes("input* other*", _SUB, unlike=(torch.rsub,)),
        rtl="fixed_sub",
    ),
    _elementwise(
        "mul",
        "mul multiply imul mul_",
        compute=computes("input* other*", _MUL),
        carries_factor=(0, 1),
        rtl="fixed_mul",
    ),
    _elementwise(
        "div",
        "div divide truediv true_divide itruediv div_",
        carries_factor=(0,),
        rtl="fixed_div",
    ),
    _elementwise("floor_divide", "floordiv floor_divide ifloordiv"),
    _elementwise("remainder", "remainder mod fmod"),
    _elementwise("pow", "pow pow_ float_power square", rtl="fixed_pow"),
    _elementwise("neg", "neg negative", rtl="fixed_minus"),
    _elementwise("abs", "abs absolute", rtl=_LUT),
    _elementwise("exp", "exp exp_ exp2 expm1", rtl=_LUT),
    _elementwise("log", "log log_ log2 log10 log1p", rtl=_LUT),
    _elementwise("sqrt", "sqrt sqrt_", rtl=_LUT),
    _elementwise("rsqrt", rtl=_LUT),
    _elementwise("reciprocal", rtl=_LUT),
    _elementwise("sin", "sin asin sinh", rtl=_LUT),
    _elementwise("cos", "cos acos cosh", rtl=_LUT),
    _elementwise("tan", "tan atan atan2"),
    _elementwise("erf", "erf erfc erfinv", rtl=_LUT),
    _elementwise("sign", "sign sgn", rtl=_LUT),
    _elementwise("round", "round floor ceil trunc frac", rtl=_LUT),
    _elementwise("clamp", "clamp clamp_ clip", rtl=_CLAMP),
    _elementwise("clamp_min", rtl=_CLAMP),
    _elementwise("clamp_max", rtl=_CLAMP),
    _elementwise("maximum", "maximum fmax", rtl=_CLAMP),
    _elementwise("minimum", "minimum fmin", rtl=_CLAMP),
    _elementwise("addcmul", "addcmul addcdiv addcmul_ addcdiv_"),
    _elementwise("lerp"),
    _elementwise("compare", "eq ne lt le gt ge isclose", rtl="fixed_compare"),
    _elementwise("isin", dims=None),  # compares with every element of its second operand
    _elementwise(
        "logical",
        "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not "
        "bitwise_xor and_ or_ xor not_ invert lshift rshift",
        rtl="fixed_not",
    ),
    _elementwise("isnan", "isnan isinf isfinite nan_to_num"),
    _elementwise("where", rtl="mask"),
    _elementwise("masked_fill", "masked_fill masked_fill_", rtl="mask"),
    Op("rotary", IMPLICIT_FUNC, flops_per_output=3),
    Op("rounded_rms_norm", IMPLICIT_FUNC, flops_per_output=6),
    Op("add_rounded_rms_norm", IMPLICIT_FUNC, flops_per_output=4),  # of two results
)
