"""Convolutional networks for small images: a plain one and a residual one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chop.models.reference_models import reference_model


@reference_model("cnn", reads="images", example=lambda m: torch.zeros(2, m.conv1.in_channels, 8, 8))
class CNN(nn.Module):
    """Two convolutions with batch norm, then a linear classifier on the mean over the image."""

    def __init__(self, in_channels: int = 1, width: int = 16, num_labels: int = 10) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.pool, self.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(2 * width, num_labels)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        logits: Tensor = self.classifier(self.pool(x).flatten(1))
        return logits


class ResidualBlock(nn.Module):
    """Residual block x + f(x), with two convolutions in f."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(y)))


@reference_model(
    "residual_cnn", reads="images", example=lambda m: torch.zeros(2, m.stem.in_channels, 8, 8)
)
class ResidualCNN(nn.Module):
    """A stem, residual blocks of one width, then a linear classifier on the mean."""

    def __init__(
        self, in_channels: int = 1, width: int = 16, num_blocks: int = 2, num_labels: int = 10
    ) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*(ResidualBlock(width) for _ in range(num_blocks)))
        self.pool, self.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(width, num_labels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(torch.relu(self.norm(self.stem(x))))
        logits: Tensor = self.classifier(self.pool(x).flatten(1))
        return logits
