"""Layers with a pruned weight: zero where masked, in training too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chop.ir.reclass import mask_name, masked, recipe_members, reclassed
from chop.ir.split_rule import SplitRule, plain_split_rule

WEIGHT = "weight"
LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
"""Layers of torch whose masked classes have names here; others are created on demand."""


class Masked(nn.Module):
    """A layer with a buffer `weight_mask`: its weight reads as zero where the mask is False.

    Gradients there are zero, and changes by an optimiser's momentum are neither used nor saved. The
    parameter keeps its name, and state dicts also contain the mask.
    """

    plain_class: ClassVar[type[nn.Module]]
    weight_mask: Tensor

    @property
    def weight(self) -> Tensor:
        """Weight with its zeros."""
        stored: Tensor | None = self._parameters.get(WEIGHT)
        if stored is None:  # temporarily replaced by a value
            stored = self.__dict__.get(WEIGHT)
        if stored is None:  # under construction: hasattr must be False
            raise AttributeError(f"{type(self).__name__} has no weight yet")
        return masked(self, WEIGHT, stored)

    def write_zeros(self) -> None:
        """Set the stored parameter to zero where it is pruned, if this process has it."""
        stored = self._parameters[WEIGHT]
        if stored is None:  # a stage of a pipeline lacks the parameters of the others
            return
        with torch.no_grad():
            stored.masked_fill_(~self.weight_mask, 0.0)

    def split_rule(self) -> SplitRule | None:
        """Return how this layer is split over devices; None if it must run whole."""
        own = getattr(super(), "split_rule", None)
        rule: SplitRule | None = plain_split_rule(self) if own is None else own()
        return rule

    def train(self, mode: bool = True) -> Any:
        """Set the mode as `nn.Module.train` does, and write the zeros."""
        self.write_zeros()
        return super().train(mode)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.write_zeros()
        super()._save_to_state_dict(*args, **kwargs)


def stored_weight(layer: nn.Module) -> nn.Parameter:
    """Return the parameter behind a layer's weight, without its mask."""
    weight = layer._parameters[WEIGHT]
    assert weight is not None, f"{type(layer).__name__} has no weight"
    return weight


def masked_class(cls: type[nn.Module]) -> type[Masked]:
    """Return `cls` with a mask on its weight: nn.Linear -> MaskedLinear."""
    return _MASKED(cls)


def _mask(cls: type[nn.Module]) -> type[Masked]:
    members = {
        "__module__": __name__,
        "__doc__": f"`{cls.__name__}` with a pruned weight.",
        "plain_class": cls,
        **(recipe_members(masked_class, cls) if cls not in LAYERS else {}),
    }
    return type(f"Masked{cls.__name__}", (Masked, cls), members)


_MASKED: Callable[..., type[Masked]] = functools.cache(_mask)

MaskedLinear = masked_class(nn.Linear)
MaskedConv1d = masked_class(nn.Conv1d)
MaskedConv2d = masked_class(nn.Conv2d)
MaskedConv3d = masked_class(nn.Conv3d)
MaskedConvTranspose1d = masked_class(nn.ConvTranspose1d)
MaskedConvTranspose2d = masked_class(nn.ConvTranspose2d)
MaskedConvTranspose3d = masked_class(nn.ConvTranspose3d)


def with_mask(layer: nn.Module, mask: Tensor) -> Masked:
    """Return a float layer with `mask`, combined with its earlier mask.

    The parameter is shared with `layer` and set to zero where it is pruned.
    """
    cls = type(layer)
    pruned = reclassed(layer, cls if issubclass(cls, Masked) else masked_class(cls))
    old = pruned._buffers.get(mask_name(WEIGHT))
    pruned.register_buffer(mask_name(WEIGHT), mask if old is None else mask & old)
    pruned.write_zeros()
    return pruned


def without_mask(layer: Masked) -> nn.Module:
    """Return the layer without its mask; the zeros stay in its weight."""
    layer.write_zeros()
    plain = reclassed(layer, layer.plain_class)
    del plain._buffers[mask_name(WEIGHT)]
    return plain
