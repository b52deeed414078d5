"""A linear layer with a low-rank adapter beside it."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chop.errors import ConfigError
from chop.ir.reclass import reclassed


def _check(base_layer: nn.Module, rank: int, dropout: float) -> None:
    if not hasattr(base_layer, "in_features"):
        kind = type(base_layer).__name__
        raise ConfigError(f"LoRALinear: base_layer must be a linear layer, got {kind}.")
    if not isinstance(rank, int) or rank < 1:
        raise ConfigError(f"LoRALinear: rank must be at least 1, got {rank!r}.")
    if not 0 <= dropout < 1:
        raise ConfigError(f"LoRALinear: dropout must be at least 0 and below 1, got {dropout}.")


class LoRALinear(nn.Linear):
    """`base_layer(x) + alpha / rank * lora_B(lora_A(dropout(x)))`, where lora_B starts at zero.

    `base_layer` is any linear layer, quantised and packed ones too; it is kept whole and frozen, so
    its bias stays. `weight` and `bias` are the base layer's. A layer with rank 8 on 768 features
    trains 2 * 8 * 768 numbers beside 768 * 768 frozen ones.

    A packed layer says of itself `dtype`, the float type it stands for, `float_weight()` and
    `with_added(delta)`, the layer with the sum rounded to its format again.
    """

    mase_leaf: ClassVar[bool] = True

    base_layer: Any
    lora_A: nn.Linear  # noqa: N815  (the names PEFT knows them by)
    lora_B: nn.Linear  # noqa: N815

    def __init__(
        self, base_layer: nn.Module, rank: int, alpha: float = 1.0, dropout: float = 0.0
    ) -> None:
        _check(base_layer, rank, dropout)
        nn.Module.__init__(self)  # the parameters of an nn.Linear are the base layer's
        sizes: Any = base_layer
        self.in_features, self.out_features = sizes.in_features, sizes.out_features
        self.rank, self.alpha = rank, alpha
        self.trained_before: list[str] = []
        self.base_layer = base_layer
        like = _factory_of(base_layer)
        self.lora_dropout = nn.Dropout(dropout)
        self.lora_A = nn.Linear(self.in_features, rank, bias=False, **like)
        self.lora_B = nn.Linear(rank, self.out_features, bias=False, **like)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)
        self.train(base_layer.training)

    @property
    def scale(self) -> float:
        """What the adapter's result is multiplied by."""
        return self.alpha / self.rank

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The base layer's weight, without the adapter."""
        weight: Tensor = (
            self.base_layer.float_weight() if is_packed(self.base_layer) else self.base_layer.weight
        )
        return weight

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        """The base layer's bias."""
        bias: Tensor | None = self.base_layer.bias
        return bias

    def forward(self, input: Tensor) -> Tensor:
        adapted: Tensor = self.lora_B(self.lora_A(self.lora_dropout(input)))
        result: Tensor = self.base_layer(input)
        return result + self.scale * adapted

    def delta(self) -> Tensor:
        """What the adapter adds to the weight: `alpha / rank * B A`."""
        return self.scale * (self.lora_B.weight.float() @ self.lora_A.weight.float())

    def fuse(self, *, in_place: bool = True) -> Any:
        """The base layer with the adapter added to its weight.

        The weight is changed in place, or with `in_place = False` left alone: the layer is then a
        copy with a weight of its own, for a weight that others have too. A quantised or packed
        layer rounds the sum to its format; a pruned one keeps its zeros. An adapter that adds
        nothing gives the base layer as it is.
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


def adapted_layer(module: nn.Module) -> nn.Module:
    """Return the layer that an adapter adapts, or `module` itself if it is no adapter."""
    return module.base_layer if isinstance(module, LoRALinear) else module


def is_packed(layer: nn.Module) -> bool:
    """Whether the layer's weight lies in memory as bytes."""
    return hasattr(layer, "with_added")


def _factory_of(layer: Any) -> dict[str, Any]:
    """Where, and in which type, the adapter of `layer` computes."""
    if is_packed(layer):
        return {"device": layer.codes.device, "dtype": layer.dtype}
    return {"device": layer.weight.device, "dtype": layer.weight.dtype}


def _with_own_weight(layer: nn.Module) -> nn.Module:
    """`layer` again, whose weight is a copy; everything else is still shared."""
    if parametrize.is_parametrized(layer, "weight"):
        return copy.deepcopy(layer)
    copied, weight = reclassed(layer, type(layer)), stored_weight(layer)
    copied._parameters["weight"] = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    return copied


def stored_weight(layer: nn.Module) -> nn.Parameter:
    """The parameter that `layer.weight` is, or is made from."""
    if parametrize.is_parametrized(layer, "weight"):
        return layer.parametrizations.weight.original  # type: ignore[union-attr, return-value]
    weight = layer._parameters["weight"]
    assert weight is not None, f"{type(layer).__name__} has no weight"
    return weight
