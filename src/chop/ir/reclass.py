"""Change of a module's class, and recipes of classes that are created at run time.

A class created at run time has no importable name. Its recipe is the function that creates it and
the arguments of that function, which pickles and checkpoints store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
ClassMaker = Callable[..., type[nn.Module]]
Recipe = tuple[ClassMaker, tuple[type[nn.Module], ...]]

OWN_TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""Tables of a module that are copied, so that replacing a tensor affects one module."""


def reclassed(module: nn.Module, cls: type[M]) -> M:
    """Return `module` as an instance of `cls`, with the same parameters, buffers and hooks."""
    other = cls.__new__(cls)
    other.__dict__.update(module.__dict__)
    for table in OWN_TABLES:
        other.__dict__[table] = module.__dict__[table].copy()
    return other


def recipe_members(maker: ClassMaker, *parts: type[nn.Module]) -> dict[str, Any]:
    """Return the members that make instances of the class `maker(*parts)` picklable."""
    return {"recipe": (maker, parts), "__reduce_ex__": _reduce}


def recipe_of(cls: type) -> Recipe | None:
    """Return the recipe of a class that was created at run time, or None."""
    recipe: Recipe | None = vars(cls).get("recipe")
    return recipe


def _reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
    recipe = recipe_of(type(self))
    if recipe is None:  # a class derived from one with a recipe, as in a parametrisation
        return tuple(object.__reduce_ex__(self, protocol))
    return _new, recipe, self.__getstate__()


def _new(maker: ClassMaker, parts: tuple[type[nn.Module], ...]) -> nn.Module:
    cls = maker(*parts)
    return cls.__new__(cls)


def mask_name(name: str) -> str:
    """Return the name of a parameter's mask: `weight` -> `weight_mask`."""
    return f"{name}_mask"


def masked(module: nn.Module, name: str, value: Tensor) -> Tensor:
    """Return `value`, derived from the parameter `name`, with zeros where it is pruned."""
    mask = module._buffers.get(mask_name(name))
    return value if mask is None else value.masked_fill(mask == 0, 0.0)


twin_of = reclassed  # earlier name
