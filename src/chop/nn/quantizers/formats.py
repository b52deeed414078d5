"""The door from a config mapping to a registered number format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.arguments import MAPPING, NONE, check
from chop.config import parse
from chop.errors import ConfigError, RegistryError
from chop.nn.quantizers.base import FORMATS, Quantizer

__all__ = ["FORMATS", "find_format", "make_quantizer"]


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
