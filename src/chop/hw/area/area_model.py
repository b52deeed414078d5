"""Area models of components: the parts list of an instance, by its class.

A component's folder has its model in `area.py`, under `@area_model(Class)`. Without a model, a
component counts as the registers, multipliers and memories of its `cost()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from chop.errors import HardwareError
from chop.hw.area.inventory import Inventory, bits_for
from chop.hw.design.component import Component
from chop.hw.design.folders import load_facet
from chop.hw.design.switched import Switched

AreaModel = Callable[[Inventory, Any], None]
M = TypeVar("M", bound=AreaModel)
AREA_MODELS: dict[type[Any], AreaModel] = {}
"""Functions that add the parts of an instance of a class, or of its children, to an inventory."""
UNMODELLED: list[type[Component]] = []
"""Classes without measurements that a model could be fitted to: predicting them is an error."""
EMPTY_SIZE = 16
"""Flip-flops added before the logarithm of a component's size, so that none gives 4, not -inf."""


def unmodelled() -> tuple[type[Component], ...]:
    """Return the classes that have no area model on purpose."""
    load_facet("area")
    return tuple(UNMODELLED)


def area_model(cls: type[Any]) -> Callable[[M], M]:
    """Register the decorated function as the area model of `cls` and of its children."""

    def decorate(model: M) -> M:
        AREA_MODELS[cls] = model
        return model

    return decorate


def inventory_of(component: Component, family: str) -> Inventory:
    """Return the parts list of `component`; its amount `one` is the constant of each fit.

    Nets grow with the logarithm of a component's size and of its lanes, so both are on its path.
    """
    inventory = Inventory(family)
    inventory.add("one")
    inventory.path("one", 1.0)
    count(inventory, component)
    size = inventory.amounts.get("ff", 0.0) + inventory.amounts.get("ff_dsp", 0.0)
    inventory.path("size", math.log2(size + EMPTY_SIZE))
    inventory.path("lanes", math.log2(max(s.lanes for s in component.inputs)) + 1)
    return inventory


def count(inventory: Inventory, component: Component) -> None:
    """Add the parts of `component`; raise an error if no model was ever fitted to its class."""
    if isinstance(component, unmodelled()):
        raise HardwareError(
            f"predict: no model of '{component.kind}'. Allowed: components that "
            f"`chop.hw.flow.predict` counts, such as those of multiplier 'array' and 'shift_add'."
        )
    models = (AREA_MODELS[cls] for cls in type(component).__mro__ if cls in AREA_MODELS)
    next(models, count_default)(inventory, component)


def count_default(inventory: Inventory, component: Component) -> None:
    """Add the registers, multipliers and memories of a component without a model."""
    cost = component.cost()
    inventory.registers(cost.register_bits)
    inventory.add("unknown", cost.register_bits)
    inventory.add("dsp", cost.multipliers)
    for memory in component.memories():
        inventory.rom(memory.words, memory.width)


@area_model(Switched)
def count_switched(inventory: Inventory, component: Switched) -> None:
    """Add one layer, with the memories of all layers."""
    first = component.layers[0]
    count(inventory, first)
    for memory, banked in zip(first.memories(), component.memories(), strict=True):
        if len(banked.words) > len(memory.words):
            inventory.rom(banked.words, banked.width)
            # The address of the bank and that within it are registers.
            inventory.add("bank_base", 2 * bits_for(len(banked.words)))
