"""Number formats: tensor in, tensor of representable values out.

To add one: its file in this package and its line below. A format of your own needs neither: a class
that extends `Quantizer` and has a `name` is registered wherever it is defined.

>>> import torch
>>> Integer(width=8, frac_width=4)(torch.tensor(0.30)).item()
0.3125
"""

from __future__ import annotations

# isort: off
from chop.nn.quantizers.quantizer import FORMATS as FORMATS
from chop.nn.quantizers.quantizer import Quantizer as Quantizer
from chop.nn.quantizers.quantizer import RoundingQuantizer as RoundingQuantizer
from chop.nn.quantizers.blocks import BlockQuantizer as BlockQuantizer

# One line for each format, in the order of the registry: tables and searches follow it.
from chop.nn.quantizers.integer import Integer as Integer
from chop.nn.quantizers.scale_integer import ScaleInteger as ScaleInteger
from chop.nn.quantizers.binary import Binary as Binary
from chop.nn.quantizers.binary_scaling import BinaryScaling as BinaryScaling
from chop.nn.quantizers.binary_residual import BinaryResidual as BinaryResidual
from chop.nn.quantizers.ternary import Ternary as Ternary
from chop.nn.quantizers.logarithmic import Log as Log
from chop.nn.quantizers.minifloat_ieee import MinifloatIEEE as MinifloatIEEE
from chop.nn.quantizers.minifloat_denorm import MinifloatDenorm as MinifloatDenorm
from chop.nn.quantizers.fp8 import FP8 as FP8
from chop.nn.quantizers.block_fp import BlockFP as BlockFP
from chop.nn.quantizers.block_minifloat import BlockMinifloat as BlockMinifloat
from chop.nn.quantizers.block_log import BlockLog as BlockLog
from chop.nn.quantizers.mxint import MXInt as MXInt
from chop.nn.quantizers.mxfp import MXFP as MXFP
from chop.nn.quantizers.nvfp4 import NVFP4 as NVFP4
from chop.nn.quantizers.fp8_block import FP8Block as FP8Block
from chop.nn.quantizers.bypass import Bypass as Bypass

from chop.nn.quantizers.formats import make_quantizer as make_quantizer
from chop.nn.quantizers.formats import parse_format as parse_format
from chop.nn.quantizers.operands import operand_quantizers as operand_quantizers
