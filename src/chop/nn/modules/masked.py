"""Layers whose weight is pruned: zero where a mask says so, in training too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chop.ir.reclass import mask_name, masked, recipe_members, reclassed

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
"""Layers of torch whose masked classes have names here; others are made at need."""


class Masked(nn.Module):
    """A layer with a buffer `weight_mask`: its weight reads as zero where the mask is False.

    Gradients there are zero, so training leaves the zeros alone; an optimiser that still moves
    them by momentum changes nothing that is computed or saved. The parameter keeps its name, and
    state dicts have the mask beside it.
    """

    plain_class: ClassVar[type[nn.Module]]
    weight_mask: Tensor

    @property
    def weight(self) -> Tensor:
        """The weight as the layer computes with it."""
        stored: Tensor | None = self._parameters.get(WEIGHT)
        if stored is None:  # a value may stand for it for a while
            stored = self.__dict__.get(WEIGHT)
        if stored is None:  # while it is being built; hasattr must say no
            raise AttributeError(f"{type(self).__name__} has no weight yet")
        return masked(self, WEIGHT, stored)

    def write_zeros(self) -> None:
        """Set the stored parameter to zero where it is pruned."""
        stored = self._parameters[WEIGHT]
        with torch.no_grad():
            stored.masked_fill_(~self.weight_mask, 0.0)  # type: ignore[union-attr]

    def train(self, mode: bool = True) -> Any:
        """As `nn.Module.train`; the stored parameter gets its zeros."""
        self.write_zeros()
        return super().train(mode)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.write_zeros()
        super()._save_to_state_dict(*args, **kwargs)


def stored_weight(layer: nn.Module) -> nn.Parameter:
    """The parameter behind a layer's weight, which reads otherwise where it is pruned."""
    weight = layer._parameters[WEIGHT]
    assert weight is not None, f"{type(layer).__name__} has no weight"
    return weight


def masked_class(cls: type[nn.Module]) -> type[Masked]:
    """`cls` with a mask on its weight: nn.Linear -> MaskedLinear."""
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
    """A float layer that keeps its weight where `mask` and any mask before it do.

    The parameter is the layer's own, and is set to zero where it is pruned.
    """
    cls = type(layer)
    made = reclassed(layer, cls if issubclass(cls, Masked) else masked_class(cls))
    old = made._buffers.get(mask_name(WEIGHT))
    made.register_buffer(mask_name(WEIGHT), mask if old is None else mask & old)
    made.write_zeros()
    return made


def without_mask(layer: Masked) -> nn.Module:
    """The layer as it was before it was masked, its weight with the zeros."""
    layer.write_zeros()
    made = reclassed(layer, layer.plain_class)
    del made._buffers[mask_name(WEIGHT)]
    return made
