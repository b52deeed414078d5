"""What kernels ask of a GPU."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors it has; 1 for what is no GPU."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def tickets_for(device: torch.device, count: int) -> Tensor:
    """At least `count` zeros that kernels on the current stream count up and set back to zero."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return _tickets(device, stream, 1 << max(count - 1, 1).bit_length())


@functools.cache
def _tickets(device: torch.device, stream: int, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int32, device=device)
