"""A linear layer with a low-rank adapter."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.errors import ConfigError
from chop.ir.reclass import mask_name, reclassed
from chop.ir.split_rule import FollowingTensor, ParameterCuts, SplitRule, split_rule_of


class LoRALinear(nn.Linear):
    """`base_layer(x) + alpha / rank * lora_B(lora_A(dropout(x)))`, where lora_B starts at zero.

    `base_layer` is any linear layer, quantised and packed ones too; it is frozen. `weight`
    and `bias` are the base layer's. A layer with rank 8 on 768 features trains 2 * 8 * 768 numbers
    next to 768 * 768 frozen ones.

    On a pruned base layer the adapter's product B A has the same zeros as the weight, in training
    too. So fusing keeps both the zeros and the output.

    A packed layer has `dtype`, the float type of its weight, `float_weight()`, and
    `with_added(delta)`, the layer with the sum rounded to its format again.
    """

    mase_leaf: ClassVar[bool] = True

    base_layer: Any
    lora_A: nn.Linear  # noqa: N815  (PEFT's names)
    lora_B: nn.Linear  # noqa: N815

    def __init__(
        self, base_layer: nn.Module, rank: int, alpha: float = 1.0, dropout: float = 0.0
    ) -> None:
        if not hasattr(base_layer, "in_features"):
            kind = type(base_layer).__name__
            raise ConfigError(f"LoRALinear: base_layer must be a linear layer, got {kind}.")
        if not isinstance(rank, int) or rank < 1:
            raise ConfigError(f"LoRALinear: rank must be at least 1, got {rank!r}.")
        if not 0 <= dropout < 1:
            raise ConfigError(f"LoRALinear: dropout must be at least 0 and below 1, got {dropout}.")
        nn.Module.__init__(self)  # the parameters of an nn.Linear are the base layer's
        base: Any = base_layer
        self.in_features, self.out_features = base.in_features, base.out_features
        self.rank, self.alpha = rank, alpha
        self.trained_before: list[str] = []
        self.base_layer = base_layer
        of_dtype, of_device = (base, base.codes) if is_packed(base) else (base.weight, base.weight)
        like: Any = {"device": of_device.device, "dtype": of_dtype.dtype}
        self.lora_dropout = nn.Dropout(dropout)
        self.lora_A = nn.Linear(self.in_features, rank, bias=False, **like)
        self.lora_B = nn.Linear(rank, self.out_features, bias=False, **like)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)
        self.train(base_layer.training)

    @property
    def scale(self) -> float:
        """Factor of the adapter's result."""
        return self.alpha / self.rank

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Weight of the base layer, without the adapter."""
        weight: Tensor = (
            self.base_layer.float_weight() if is_packed(self.base_layer) else self.base_layer.weight
        )
        return weight

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        """Bias of the base layer."""
        bias: Tensor | None = self.base_layer.bias
        return bias

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = self.base_layer(input)
        mask = self._mask
        if mask is not None:
            product = (self.lora_B.weight @ self.lora_A.weight).masked_fill(~mask, 0.0)
            return result + self.scale * F.linear(self.lora_dropout(input), product)
        adapted: Tensor = self.lora_B(self.lora_A(self.lora_dropout(input)))
        return result + self.scale * adapted

    @property
    def _mask(self) -> Tensor | None:
        """Mask of the base layer's weight: False where it is pruned; None if it is not pruned."""
        mask: Tensor | None = self.base_layer._buffers.get(mask_name("weight"))
        return mask

    def split_rule(self) -> SplitRule | None:
        """Return the rule of the base layer, with the adapter's outputs or inputs split too."""
        base = split_rule_of(self.base_layer)
        if base is None or {type(self.lora_A), type(self.lora_B)} != {nn.Linear}:
            return None
        tensors = {f"base_layer.{name}": tensor for name, tensor in base.tensors.items()}
        tensors["lora_A.weight"] = FollowingTensor("weight", {1: 1})
        tensors["lora_B.weight"] = FollowingTensor("weight", {0: 0})
        return replace(base, tensors=tensors)

    def for_parts(self, parts: Mapping[str, Tensor], cuts: ParameterCuts) -> LoRALinear:
        """Return the layer to be called with the tensors `parts`; `cuts` are those of the base."""
        if not hasattr(self.base_layer, "for_parts"):
            return self
        of_base = (_of_base(parts), _of_base(cuts))
        part = reclassed(self, type(self))
        part._modules["base_layer"] = self.base_layer.for_parts(*of_base)
        return part

    def delta(self) -> Tensor:
        """Return the adapter's change of the weight: `alpha / rank * B A`, zero where pruned."""
        product = self.lora_B.weight.float() @ self.lora_A.weight.float()
        if self._mask is not None:
            product = product.masked_fill(~self._mask, 0.0)
        return self.scale * product

    def fuse(self, *, in_place: bool = True) -> Any:
        """Return the base layer with the adapter added to its weight.

        With `in_place = False` the layer is a copy with another weight, for a weight that other
        layers share. A quantised or packed layer rounds the sum to its format; a pruned one keeps
        its zeros, which the adapter has too. If the adapter is zero, the base layer is returned
        unchanged.
        """
        delta = self.delta()
        if not delta.any():
            return self.base_layer
        if is_packed(self.base_layer):
            return self.base_layer.with_added(delta)
        layer = self.base_layer if in_place else _with_own_weight(self.base_layer)
        weight = stored_weight(layer)
        with torch.no_grad():
            weight.add_(delta.to(weight.dtype))
        return layer

    def extra_repr(self) -> str:
        return f"rank={self.rank}, alpha={self.alpha}"


def _of_base(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of the base layer, by their names there."""
    prefix = "base_layer."
    return {n.removeprefix(prefix): item for n, item in items.items() if n.startswith(prefix)}


def adapted_layer(module: nn.Module) -> nn.Module:
    """Return the layer that an adapter adapts, or `module` itself if it is no adapter."""
    return module.base_layer if isinstance(module, LoRALinear) else module


def is_packed(layer: nn.Module) -> bool:
    """Return True if the layer's weight is packed into bytes."""
    return hasattr(layer, "with_added")


def _with_own_weight(layer: nn.Module) -> nn.Module:
    """Return `layer` with a copy of its weight; everything else is shared."""
    if parametrize.is_parametrized(layer, "weight"):
        return copy.deepcopy(layer)
    copied, weight = reclassed(layer, type(layer)), stored_weight(layer)
    copied._parameters["weight"] = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    return copied


def stored_weight(layer: nn.Module) -> nn.Parameter:
    """Return the parameter behind `layer.weight`."""
    if parametrize.is_parametrized(layer, "weight"):
        return layer.parametrizations.weight.original  # type: ignore[union-attr, return-value]
    weight = layer._parameters["weight"]
    assert weight is not None, f"{type(layer).__name__} has no weight"
    return weight
