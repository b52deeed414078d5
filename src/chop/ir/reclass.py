"""A module under another class, and classes made at run time that can be made again.

A class made at run time has no name to look it up by. It carries a recipe instead, the function
that makes it and the classes that function takes, which pickles and checkpoints write down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
ClassMaker = Callable[..., type[nn.Module]]
Recipe = tuple[ClassMaker, tuple[type[nn.Module], ...]]

OWN_TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""What each of the two keeps for itself: replacing a tensor in one leaves the other alone."""


def reclassed(module: nn.Module, cls: type[M]) -> M:
    """`module` as an instance of `cls`: the same parameters, buffers, hooks, device and mode."""
    other = cls.__new__(cls)
    other.__dict__.update(module.__dict__)
    for table in OWN_TABLES:
        other.__dict__[table] = module.__dict__[table].copy()
    return other


def recipe_members(maker: ClassMaker, *parts: type[nn.Module]) -> dict[str, Any]:
    """Members for a class that `maker(*parts)` makes, so that its instances can be saved."""
    return {"recipe": (maker, parts), "__reduce_ex__": _reduce}


def recipe_of(cls: type) -> Recipe | None:
    """How `cls` itself was made at run time; None for a class that has a place."""
    found: Recipe | None = vars(cls).get("recipe")
    return found


def _reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
    recipe = recipe_of(type(self))
    if recipe is None:  # a class derived from one with a recipe, as parametrisation makes
        return tuple(object.__reduce_ex__(self, protocol))
    return _new, recipe, self.__getstate__()


def _new(maker: ClassMaker, parts: tuple[type[nn.Module], ...]) -> nn.Module:
    cls = maker(*parts)
    return cls.__new__(cls)


def mask_name(name: str) -> str:
    """The buffer that says where a parameter is kept: `weight` -> `weight_mask`."""
    return f"{name}_mask"


def masked(module: nn.Module, name: str, value: Tensor) -> Tensor:
    """`value`, which is or comes from the parameter `name`, with zeros where it is pruned."""
    mask = module._buffers.get(mask_name(name))
    return value if mask is None else value.masked_fill(mask == 0, 0.0)


twin_of = reclassed  # the name that programs written before import
