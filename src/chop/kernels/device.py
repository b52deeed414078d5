"""What kernels ask of a GPU."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors it has; 1 for what is no GPU."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def made_current(device: torch.device) -> AbstractContextManager[object]:
    """The device to launch on as torch's context; none where it is the current one already."""
    if device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def raw_stream(device: torch.device) -> int:
    """The handle of the current stream, without the object that torch puts around it."""
    return int(torch._C._cuda_getCurrentRawStream(device.index))


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
