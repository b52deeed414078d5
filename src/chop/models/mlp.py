"""A perceptron with hidden layers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from chop.models.reference_models import reference_model


@reference_model("mlp", reads="features", example=lambda m: torch.zeros(2, m.layers[1].in_features))
class MLP(nn.Module):
    """Linear layers with ReLU between them; the input is flattened."""

    def __init__(
        self, in_features: int = 64, hidden: Sequence[int] = (64, 64), num_labels: int = 10
    ) -> None:
        super().__init__()
        sizes = [in_features, *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for size, following in itertools.pairwise(sizes):
            layers += [nn.Linear(size, following), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], num_labels))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits
