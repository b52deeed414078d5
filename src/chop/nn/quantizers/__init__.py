"""Number formats: tensor in, tensor of representable values out.

>>> import torch
>>> Integer(width=8, frac_width=4)(torch.tensor(0.30)).item()
0.3125
"""

from __future__ import annotations

from chop.nn.quantizers.base import Quantizer, RoundingQuantizer
from chop.nn.quantizers.binary import Binary
from chop.nn.quantizers.binary_residual import BinaryResidual
from chop.nn.quantizers.binary_scaling import BinaryScaling
from chop.nn.quantizers.block_fp import BlockFP
from chop.nn.quantizers.block_log import BlockLog
from chop.nn.quantizers.block_minifloat import BlockMinifloat
from chop.nn.quantizers.blocks import BlockQuantizer
from chop.nn.quantizers.bypass import Bypass
from chop.nn.quantizers.formats import FORMATS, make_quantizer
from chop.nn.quantizers.fp8 import FP8
from chop.nn.quantizers.integer import Integer
from chop.nn.quantizers.log import Log
from chop.nn.quantizers.minifloat_denorm import MinifloatDenorm
from chop.nn.quantizers.minifloat_ieee import MinifloatIEEE
from chop.nn.quantizers.mxfp import MXFP
from chop.nn.quantizers.mxint import MXInt
from chop.nn.quantizers.operands import operand_quantizers
from chop.nn.quantizers.scale_integer import ScaleInteger
from chop.nn.quantizers.ternary import Ternary

__all__ = [
    "FORMATS",
    "FP8",
    "MXFP",
    "Binary",
    "BinaryResidual",
    "BinaryScaling",
    "BlockFP",
    "BlockLog",
    "BlockMinifloat",
    "BlockQuantizer",
    "Bypass",
    "Integer",
    "Log",
    "MXInt",
    "MinifloatDenorm",
    "MinifloatIEEE",
    "Quantizer",
    "RoundingQuantizer",
    "ScaleInteger",
    "Ternary",
    "make_quantizer",
    "operand_quantizers",
]
