"""Formats of a layer's operands by role, one object for all layers with equal formats.

torch.compile checks the attributes of every layer at every call. A mapping that layers share is one
check per layer, where each mapping of its own took one per operand.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NoReturn

from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.gpu_formats import KernelSettings


class LayerFormats(dict[str, Quantizer]):
    """A mapping of role to format that cannot change, as many layers may hold it.

    `kernels` holds the settings of the formats' kernels, by the operands of a layer.
    """

    def __init__(self, *items: Any) -> None:
        super().__init__(*items)
        self.kernels: dict[tuple[str, tuple[str, ...]], tuple[KernelSettings, ...] | None] = {}

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "the formats of a layer cannot change in place: other layers share them. Assign a new "
            "mapping: layer.quantizers = {**layer.quantizers, 'weight': format}."
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, tuple(self.items())


def shared_formats(formats: Mapping[str, Quantizer]) -> LayerFormats:
    """Return the one object for these formats, in this order."""
    return _shared(*formats.items())


@functools.cache
def _shared(*items: tuple[str, Quantizer]) -> LayerFormats:
    return LayerFormats(items)
