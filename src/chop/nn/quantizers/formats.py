"""Formats from text and from config mappings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.arguments import MAPPING, NONE, check
from chop.config import parse
from chop.nn.quantizers.quantizer import FORMATS, Quantizer
from chop.nn.quantizers.spelling import read_spelling

__all__ = ["FORMATS", "find_format", "make_quantizer", "parse_format", "spelled_settings"]


def parse_format(text: str, where: str = "format") -> Quantizer:
    """Return the format that `text` spells; `str(format)` is the spelling.

    >>> parse_format("mxint8/16")
    MXInt(ste='masked', rounding='nearest_even', seed=None, block_size=16, axis=-1, width=8, \
exponent_width=8)
    >>> [str(parse_format(text)) for text in ("mxint8/32", "fixed8.4", "mxfp4:rounding=floor")]
    ['mxint8', 'fixed8.4', 'mxfp4:rounding=floor']

    A registered name is a spelling too (`mxint`, `integer:width=8`), and errors carry the path
    `where` and the nearest spelling.
    """
    chosen, settings = spelled_settings(text, where)
    return parse(chosen, chosen.modern(settings), where)


def spelled_settings(text: str, where: str) -> tuple[type[Quantizer], dict[str, Any]]:
    """Return the class and the settings that `text` spells, without those left at defaults."""
    return read_spelling(FORMATS, text, where)


def find_format(name: str, where: str) -> type[Quantizer]:
    """Return the class that `name`, a registered name or a spelling, stands for."""
    return spelled_settings(name, where)[0]


def make_quantizer(name: str, mapping: Mapping[str, Any] | None, where: str) -> Quantizer:
    """Return the format `name`, a name or a spelling, with the settings of `mapping`.

    >>> make_quantizer("integer", {"width": 8, "frac_width": 4}, "here").range
    (-8.0, 7.9375)
    """
    check(where, MAPPING | NONE, mapping)
    chosen, spelled = spelled_settings(name, f"{where}.name")
    return parse(chosen, chosen.modern({**spelled, **(mapping or {})}), where)
