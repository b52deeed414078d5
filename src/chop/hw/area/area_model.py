"""What a component is made of, whatever it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from chop.errors import HardwareError
from chop.hw.design.component import Component
from chop.hw.design.switched import Switched
from chop.hw.flow.predict import others, products
from chop.hw.flow.predict.inventory import Inventory
from chop.hw.library.fixed_prelu import PRelu
from chop.hw.library.fixed_table_sum import TableSum
from chop.hw.library.packed import PackedLinear

COUNTS: Mapping[type, Callable[[Inventory, Any], None]] = {
    **products.COUNTS,
    **others.COUNTS,
}
UNMODELLED = (TableSum, PackedLinear, PRelu)
"""Components of which nothing was measured that a model could be fitted to."""


def inventory_of(component: Component, family: str) -> Inventory:
    """Amounts by name; always one of the kind itself."""
    inventory = Inventory(family)
    inventory.add("one")
    inventory.path("one", 1.0)
    count(inventory, component)
    size = inventory.amounts.get("ff", 0.0) + inventory.amounts.get("ff_dsp", 0.0)
    inventory.path("size", math.log2(size + 16))
    inventory.path("lanes", math.log2(max(s.lanes for s in component.inputs)) + 1)
    return inventory


def count(inventory: Inventory, component: Component) -> None:
    """Add what `component` is made of; an error where that is not known."""
    if isinstance(component, UNMODELLED):
        raise HardwareError(
            f"predict: no model of '{component.kind}'. Allowed: components that "
            f"`chop.hw.flow.predict` counts, such as those of multiplier 'array' and 'shift_add'."
        )
    if isinstance(component, Switched):
        _count_switched(inventory, component)
        return
    for cls in type(component).__mro__:
        if cls in COUNTS:
            COUNTS[cls](inventory, component)
            return
    others.count_default(inventory, component)


def _count_switched(inventory: Inventory, component: Switched) -> None:
    """One layer, with the memories of all of them in place of its own."""
    first = component.layers[0]
    count(inventory, first)
    for memory, banked in zip(first.memories(), component.memories(), strict=True):
        if len(banked.words) > len(memory.words):
            inventory.rom(banked.words, banked.width)
            inventory.add("bank_base", 2 * (len(banked.words) - 1).bit_length())
