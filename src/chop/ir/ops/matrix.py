"""Products of tensors, reductions and running sums."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from chop.ir.ops.by_name import functions, tensor_op
from chop.ir.ops.compute import computes
from chop.ir.ops.row import Op, Shapes


def _matmul_macs(s: Shapes) -> int:
    return s.output_elements * s.inputs[0][-1]


def _einsum_macs(s: Shapes) -> int:
    # one multiply-accumulate for every combination of the index letters of the equation
    letters = str(s.config.get("equation", "")).replace(" ", "").split("->")[0].split(",")
    if "." in "".join(letters) or [len(t) for t in letters] != [len(i) for i in s.inputs]:
        return 0
    sizes = {
        c: n
        for term, shape in zip(letters, s.inputs, strict=True)
        for c, n in zip(term, shape, strict=True)
    }
    return math.prod(sizes.values()) if len(s.inputs) > 1 else 0


ROWS = (
    tensor_op(
        "matmul",
        "matmul mm mv",
        macs=_matmul_macs,
        compute=computes("input* other*", torch.matmul, prefer={"other": "weight"}),
        dims="matmul",
        carries_factor=(0, 1),
        rtl="fixed_matmul",
    ),
    tensor_op(
        "bmm",
        macs=_matmul_macs,
        compute=computes("input* mat2*", torch.bmm, prefer={"mat2": "weight"}),
        dims="matmul",
        carries_factor=(0, 1),
        rtl="fixed_matmul",
    ),
    tensor_op(
        "grouped_mm", "_grouped_mm?", macs=_matmul_macs, functions=functions("grouped_mm?", F)
    ),
    tensor_op(
        "addmm",
        "addmm baddbmm addbmm addmv",
        macs=lambda s: s.output_elements * s.inputs[1][-1],
        dims="addmm",
    ),
    tensor_op("einsum", macs=_einsum_macs),
    tensor_op("dot", "dot vdot inner outer tensordot"),
    tensor_op("norm", "norm vector_norm matrix_norm", flops_per_output=2, dims="reduce"),
    tensor_op(
        "cumsum",
        "cumsum cumprod cummax cummin logcumsumexp",
        flops_per_output=1,
        dims="along_dimension",
    ),
    tensor_op("diff", flops_per_output=1),
    tensor_op("fft", "fft ifft fft2 ifft2 fftn ifftn rfft irfft rfftn irfftn"),
)


def _reduction(name: str, names: str = "", rtl: str = "") -> Op:
    return tensor_op(name, names, flops_per_output=1, dims="reduce", rtl=rtl)


REDUCTIONS = (
    _reduction("sum", "sum nansum"),
    _reduction("prod"),
    _reduction("mean", "mean nanmean", rtl="fixed_mean"),
    _reduction("var", "var var_mean"),
    _reduction("std", "std std_mean"),
    _reduction("max", "max amax"),
    _reduction("min", "min amin"),
    _reduction("argmax", "argmax argmin", rtl="fixed_argmax"),
    _reduction("logsumexp"),
    _reduction("all", "all any"),
)
