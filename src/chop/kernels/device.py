"""Properties and counters of a GPU."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from chop.nvrtc import raw_stream


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors, 1 without a GPU."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


_tickets: dict[tuple[torch.device, int, int], Tensor] = {}


def tickets_for(device: torch.device, count: int) -> Tensor:
    """Return at least `count` zeros that kernels on the current stream count up and reset.

    They are cached, except during a graph capture: those belong to the graph's memory, and only its
    replay sets them to zero.
    """
    size = 1 << max(count - 1, 1).bit_length()
    if device.type != "cuda":  # an interpreter
        return torch.zeros(size, dtype=torch.int32)
    key = (device, raw_stream(device), size)
    if key not in _tickets:
        if torch.cuda.is_current_stream_capturing():
            return torch.zeros(size, dtype=torch.int32, device=device)
        _tickets[key] = _zeros_elsewhere(device, size)
    return _tickets[key]


def _zeros_elsewhere(device: torch.device, size: int) -> Tensor:
    """Allocate zeros in another thread: those of a graph's thread belong to the graph's memory."""

    def make() -> Tensor:
        zeros = torch.zeros(size, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)
        return zeros

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()
