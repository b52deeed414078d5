"""What small digit networks learn from: distorted images, and what a convolutional teacher says.

Of the training images some are held out, to choose by; neither the teacher nor its pupils see them.
No test image is used here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

HELD_OUT = 240
"""Training images to choose by."""
COPIES, HELD_OUT_COPIES = 24, 8
"""Distorted ones of each image that is learned from, and of each that is chosen by."""
TURN, SIZE, SHIFT, SHEAR = 0.17, 0.1, (0.96, 0.48), 0.1
"""The most that an image is turned (radians), made larger or smaller, moved (pixels across and
down) and slanted."""
TEACHER_EPOCHS, TEACHER_RATE, SMOOTHING = 30, 6e-3, 0.05
BATCH = 128


@dataclass(frozen=True)
class Lessons:
    """Images as vectors, the originals first, with their labels and the teacher's scores."""

    images: Tensor
    labels: Tensor
    scores: Tensor
    originals: int
    held_images: Tensor
    held_labels: Tensor

    def draw(self, share: float) -> Tensor:
        """The numbers of a batch of images, of which about `share` are distorted."""
        plain = torch.randint(0, self.originals, (BATCH,))
        whole = torch.randint(0, len(self.images), (BATCH,))
        return torch.where(torch.rand(BATCH) < share, whole, plain)


def distorted(images: Tensor) -> Tensor:
    """Each image (n, 1, 8, 8) turned, stretched, slanted and moved at random."""
    count = len(images)
    turn, slant = _between(count, TURN), _between(count, SHEAR)
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0] = turn.cos() / (1 + _between(count, SIZE))
    matrix[:, 0, 1] = slant - turn.sin()
    matrix[:, 1, 0] = turn.sin()
    matrix[:, 1, 1] = turn.cos() / (1 + _between(count, SIZE))
    for axis, (pixels, side) in enumerate(zip(SHIFT, (8, 8), strict=True)):
        matrix[:, axis, 2] = _between(count, 2 * pixels / side)
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def _between(count: int, most: float) -> Tensor:
    return (torch.rand(count) * 2 - 1) * most


def teacher() -> nn.Module:
    """Three convolutions and a linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Dropout(0.3)),
        *(nn.Flatten(), nn.Linear(1024, 10)),
    )


def train_teacher(images: Tensor, labels: Tensor) -> nn.Module:
    """A teacher, trained on distorted images."""
    model = teacher()
    optimiser = torch.optim.Adam(model.parameters(), TEACHER_RATE, weight_decay=1e-5)
    steps = TEACHER_EPOCHS * -(-len(images) // BATCH)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, TEACHER_RATE, steps)
    for _ in range(TEACHER_EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            optimiser.zero_grad()
            answer = model(distorted(images[batch]))
            functional.cross_entropy(answer, labels[batch], label_smoothing=SMOOTHING).backward()
            optimiser.step()
            rates.step()
    return model.eval()


def prepare_lessons(data: Any) -> Lessons:
    """Lessons of the training images of `data`."""
    torch.manual_seed(0)
    order = torch.randperm(len(data.train_images))
    (held, held_labels), (images, labels) = (
        (data.train_images[some], data.train_labels[some])
        for some in (order[:HELD_OUT], order[HELD_OUT:])
    )
    model = train_teacher(images, labels)
    every = torch.cat([images, *(distorted(images) for _ in range(COPIES))])
    chosen_by = torch.cat([held, *(distorted(held) for _ in range(HELD_OUT_COPIES))])
    with torch.no_grad():
        scores = torch.cat([model(some) for some in every.split(1024)])
    return Lessons(
        every.flatten(1),
        labels.repeat(COPIES + 1),
        scores,
        len(images),
        chosen_by.flatten(1),
        held_labels.repeat(HELD_OUT_COPIES + 1),
    )


def loss_of(answer: Tensor, labels: Tensor, scores: Tensor, *, taught: float) -> Tensor:
    """Cross-entropy with the labels, and for `taught` of it with the teacher's softened scores."""
    heat = 2.0
    said, heard = functional.softmax(scores / heat, -1), functional.log_softmax(answer / heat, -1)
    from_teacher = -(said * heard).sum(-1).mean() * heat**2
    return (1 - taught) * functional.cross_entropy(answer, labels) + taught * from_teacher
