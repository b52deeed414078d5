"""Small models that programs for DeepWok/mase create by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from torch import Tensor, nn


class Blocks(nn.Module):
    """Sequence of layers called `seq_blocks` on a flattened input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.seq_blocks = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape [batch, num_labels]."""
        logits: Tensor = self.seq_blocks(x.flatten(1))
        return logits


def toy(num_labels: int = 2, in_features: int = 4, width: int = 100) -> nn.Module:
    """Return three linear layers with ReLU between them."""
    return Blocks(
        nn.Linear(in_features, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, num_labels),
    )


def jsc_tiny(num_labels: int = 5, in_features: int = 16) -> nn.Module:
    """Return batch norm, ReLU and one linear layer, for the 16 features of particle jets."""
    return Blocks(
        nn.BatchNorm1d(in_features), nn.ReLU(), nn.Linear(in_features, num_labels), nn.ReLU()
    )


class VGG7(nn.Module):
    """Six convolutions in three stages, then three linear layers, for images of 32 x 32."""

    def __init__(
        self, num_labels: int = 10, in_channels: int = 3, image_size: int = 32, width: int = 128
    ) -> None:
        super().__init__()
        widths = [in_channels, *(width * 2**stage for stage in (0, 0, 1, 1, 2, 2))]
        layers: list[nn.Module] = []
        for number, (size, following) in enumerate(itertools.pairwise(widths), start=1):
            layers += [nn.Conv2d(size, following, 3, padding=1), nn.BatchNorm2d(following)]
            layers += [nn.ReLU(), *([nn.MaxPool2d(2)] if number % 2 == 0 else [])]
        hidden = 8 * width
        self.feature_layers = nn.Sequential(*layers, nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Linear(widths[-1] * (image_size // 8) ** 2, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
        )
        self.last_layer = nn.Linear(hidden, num_labels)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape [batch, num_labels]."""
        logits: Tensor = self.last_layer(self.classifier(self.feature_layers(x)))
        return logits


OLD_MODELS: dict[str, Callable[..., nn.Module]] = {"toy": toy, "jsc_tiny": jsc_tiny, "vgg7": VGG7}
"""Name -> builder, which has the parameter `num_labels` and sizes."""

OLD_HUB_NAMES = {"resnet18": "microsoft/resnet-18"}
"""Name -> name on the hub, or of a folder."""

OLD_IMAGE_MODELS = ("resnet18", "vgg7")
"""Models whose input is an image."""
