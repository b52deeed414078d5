"""Quantised layers, one file per op; each class is a torch layer and a format.

`LAYER_CLASSES[nn.Linear, Integer]` is `linear.LinearInteger`. Both tables follow the ops and the
formats: what is registered later is in them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from chop.errors import RegistryError
from chop.ir.ops import OPS
from chop.nn.quantized.layer import (
    QuantizedModule,
    find_layer_class,
    layer_class,
    layer_name,
    quantized_layers,
)
from chop.nn.quantizers import FORMATS, Quantizer
from chop.registry import suggest

Pair = tuple[type[nn.Module], type[Quantizer]]


class _LayerClasses(Mapping[Pair, type[QuantizedModule]]):
    """Torch layer and format -> the class."""

    def __getitem__(self, pair: Pair) -> type[QuantizedModule]:
        if pair not in tuple(self):
            raise KeyError(pair)
        return layer_class(*pair)

    def __iter__(self) -> Iterator[Pair]:
        bases = [base for name in quantized_layers() for base in OPS[name].modules]
        return ((base, form) for base in bases for form in FORMATS.values())

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _LayersByName(Mapping[str, type[QuantizedModule]]):
    """Name of op and format -> the class of the op's first layer."""

    def __getitem__(self, name: str) -> type[QuantizedModule]:
        pairs = self._pairs()
        if name not in pairs:
            raise RegistryError(f"Unknown quantised layer '{name}'. {suggest(name, pairs)}")
        return layer_class(*pairs[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs())

    def __len__(self) -> int:
        return len(self._pairs())

    def _pairs(self) -> dict[str, Pair]:
        return {
            f"{name}_{form.name}": (OPS[name].modules[0], form)
            for name in quantized_layers()
            for form in FORMATS.values()
        }


LAYER_CLASSES: Mapping[Pair, type[QuantizedModule]] = _LayerClasses()

quantized_module_map: Mapping[str, type[QuantizedModule]] = _LayersByName()
"""`"linear_integer"` -> `LinearInteger`."""


def __getattr__(name: str) -> Any:
    found = find_layer_class(name, OPS.values())
    if found is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return found


def __dir__() -> list[str]:
    return [*globals(), *(layer_name(*pair) for pair in LAYER_CLASSES)]
