"""A linear layer with a low-rank adapter beside it."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class LoRALinear(nn.Linear):
    """`base_layer(x) + alpha / rank * lora_B(lora_A(dropout(x)))`, where lora_B starts at zero.

    `base_layer` is any linear layer, quantised ones too; it is kept whole and frozen, so its bias
    stays. `weight` and `bias` are the base layer's. A layer with rank 8 on 768 features trains
    2 * 8 * 768 numbers beside 768 * 768 frozen ones.
    """

    mase_leaf: ClassVar[bool] = True

    base_layer: nn.Linear
    lora_A: nn.Linear  # noqa: N815  (the names PEFT knows them by)
    lora_B: nn.Linear  # noqa: N815

    def __init__(
        self, base_layer: nn.Linear, rank: int, alpha: float = 1.0, dropout: float = 0.0
    ) -> None:
        nn.Module.__init__(self)  # the parameters of an nn.Linear are the base layer's
        self.in_features, self.out_features = base_layer.in_features, base_layer.out_features
        self.rank, self.alpha = rank, alpha
        self.trained_before: list[str] = []
        self.base_layer = base_layer
        like = {"device": base_layer.weight.device, "dtype": base_layer.weight.dtype}
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
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        """The base layer's bias."""
        return self.base_layer.bias

    def forward(self, input: Tensor) -> Tensor:
        adapted: Tensor = self.lora_B(self.lora_A(self.lora_dropout(input)))
        result: Tensor = self.base_layer(input)
        return result + self.scale * adapted

    def delta(self) -> Tensor:
        """What the adapter adds to the weight: `alpha / rank * B A`."""
        return self.scale * (self.lora_B.weight.float() @ self.lora_A.weight.float())

    def fuse(self) -> nn.Linear:
        """The base layer with the adapter added to its weight, which is changed in place.

        A quantised layer quantises the sum; a pruned one keeps its zeros.
        """
        weight = stored_weight(self.base_layer)
        with torch.no_grad():
            weight.add_(self.delta().to(weight.dtype))
        return self.base_layer

    def extra_repr(self) -> str:
        return f"rank={self.rank}, alpha={self.alpha}"


def stored_weight(layer: nn.Module) -> nn.Parameter:
    """The parameter that `layer.weight` is, or is made from."""
    if parametrize.is_parametrized(layer, "weight"):
        return layer.parametrizations.weight.original  # type: ignore[union-attr, return-value]
    weight = layer._parameters["weight"]
    assert weight is not None, f"{type(layer).__name__} has no weight"
    return weight
