"""Quantised layers, one module per op; each class is a torch layer and a format.

`LAYER_CLASSES[nn.Linear, Integer]` is `linear.LinearInteger`. Both tables follow the ops and the
formats, those registered later too.
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
    """Classes by torch layer and format."""

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
    """Class of an op's first layer by the names of op and format."""

    def __getitem__(self, name: str) -> type[QuantizedModule]:
        pairs = {f"{op}_{f.name}": (op, f) for op in quantized_layers() for f in FORMATS.values()}
        if name not in pairs:
            raise RegistryError(f"Unknown quantised layer '{name}'. {suggest(name, pairs)}")
        op, form = pairs[name]
        return layer_class(OPS[op].modules[0], form)

    def __iter__(self) -> Iterator[str]:
        return (f"{op}_{f.name}" for op in quantized_layers() for f in FORMATS.values())

    def __len__(self) -> int:
        return sum(1 for _ in self)


LAYER_CLASSES: Mapping[Pair, type[QuantizedModule]] = _LayerClasses()

quantized_module_map: Mapping[str, type[QuantizedModule]] = _LayersByName()
"""`"linear_integer"` -> `LinearInteger`."""


def __getattr__(name: str) -> Any:
    layer = find_layer_class(name, OPS.values())
    if layer is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return layer


def __dir__() -> list[str]:
    return [*globals(), *(layer_name(*pair) for pair in LAYER_CLASSES)]
