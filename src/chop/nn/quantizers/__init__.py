"""Number formats: tensor in, tensor of representable values out.

>>> import torch
>>> Integer(width=8, frac_width=4)(torch.tensor(0.30)).item()
0.3125
"""

from __future__ import annotations

from chop.nn.quantizers.base import Quantizer, RoundingQuantizer
from chop.nn.quantizers.bypass import Bypass
from chop.nn.quantizers.formats import FORMATS, make_quantizer
from chop.nn.quantizers.integer import Integer
from chop.nn.quantizers.operands import operand_quantizers

__all__ = [
    "FORMATS",
    "Bypass",
    "Integer",
    "Quantizer",
    "RoundingQuantizer",
    "make_quantizer",
    "operand_quantizers",
]
