"""The registry of number formats, and the door from a config mapping to a format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.arguments import MAPPING, NONE, check
from chop.config import parse
from chop.errors import ConfigError, RegistryError
from chop.nn.quantizers.base import Quantizer
from chop.nn.quantizers.binary import Binary
from chop.nn.quantizers.binary_residual import BinaryResidual
from chop.nn.quantizers.binary_scaling import BinaryScaling
from chop.nn.quantizers.block_fp import BlockFP
from chop.nn.quantizers.block_log import BlockLog
from chop.nn.quantizers.block_minifloat import BlockMinifloat
from chop.nn.quantizers.bypass import Bypass
from chop.nn.quantizers.fp8 import FP8
from chop.nn.quantizers.integer import Integer
from chop.nn.quantizers.log import Log
from chop.nn.quantizers.minifloat_denorm import MinifloatDenorm
from chop.nn.quantizers.minifloat_ieee import MinifloatIEEE
from chop.nn.quantizers.mxfp import MXFP
from chop.nn.quantizers.mxint import MXInt
from chop.nn.quantizers.scale_integer import ScaleInteger
from chop.nn.quantizers.ternary import Ternary
from chop.registry import Registry

FORMATS: Registry[type[Quantizer]] = Registry("format")
"""Add a format: its file in this package, and its class in the list below."""

for _format in (
    Integer,
    ScaleInteger,
    Binary,
    BinaryScaling,
    BinaryResidual,
    Ternary,
    Log,
    MinifloatIEEE,
    MinifloatDenorm,
    FP8,
    BlockFP,
    BlockMinifloat,
    BlockLog,
    MXInt,
    MXFP,
    Bypass,
):
    FORMATS.register(_format.name, _format, _format.aliases)


def find_format(name: str, where: str) -> type[Quantizer]:
    """The format called `name`; a miss is a config error at `where`."""
    try:
        return FORMATS[name]
    except RegistryError as error:
        raise ConfigError(f"{where}: {error}") from error


def make_quantizer(name: str, mapping: Mapping[str, Any] | None, where: str) -> Quantizer:
    """The format `name` with the settings of `mapping`.

    >>> make_quantizer("integer", {"width": 8, "frac_width": 4}, "here").range
    (-8.0, 7.9375)
    """
    check(where, MAPPING | NONE, mapping)
    chosen = find_format(name, f"{where}.name")
    return parse(chosen, chosen.modern(mapping or {}), where)
