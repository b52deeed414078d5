"""Functions of another file than a model's, where only what tracing does everywhere reaches."""

import torch


def running_sum(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        total = total + x[:, t]
    return total


def as_plain_float(size: int) -> float:
    return float(size)


class PythonTypeAsDtype(torch.nn.Module):
    """Its file keeps Python's own `int`, by which a size is no longer followed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape[0], dtype=int) + x.sum().to(int) + int(x.shape[1])
