"""What kernels ask of a GPU."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from chop.nvrtc import raw_stream


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors it has; 1 for what is no GPU."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


_kept: dict[tuple[torch.device, int, int], Tensor] = {}


def tickets_for(device: torch.device, count: int) -> Tensor:
    """At least `count` zeros that kernels on the current stream count up and set back to zero.

    They are kept. Not so those that a graph is captured with for the first time: they lie in the
    graph's memory, and only its replay sets them to zero.
    """
    size = 1 << max(count - 1, 1).bit_length()
    if device.type != "cuda":  # an interpreter
        return torch.zeros(size, dtype=torch.int32)
    key = (device, raw_stream(device), size)
    if key not in _kept:
        if torch.cuda.is_current_stream_capturing():
            return torch.zeros(size, dtype=torch.int32, device=device)
        _kept[key] = _zeros_elsewhere(device, size)
    return _kept[key]


def _zeros_elsewhere(device: torch.device, size: int) -> Tensor:
    """Zeros made by another thread: while a graph is warmed up, all that its thread allocates lies
    in the graph's memory, and nothing of that may be kept."""

    def make() -> Tensor:
        zeros = torch.zeros(size, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)
        return zeros

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()
