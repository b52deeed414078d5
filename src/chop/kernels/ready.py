"""Prepared launches of products: only x and y change from call to call.

Preparing a launch in Python takes longer than a small product on the GPU, so it is done once per
weight and shape of x.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from typing import Any

import torch
from torch import Tensor

from chop import nvrtc

MOST_KEPT = 4096
"""Most products in the cache of a thread."""
Key = tuple[Any, ...]


class Ready:
    """A product for one shape of x; `at_x` and `at_y` are indices among the arguments.

    `x_map` converts the address of x for the copy engine; without it the kernel receives the
    address.
    """

    def __init__(
        self,
        kernel: nvrtc.Function,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Sequence[Any],
        at_x: int,
        at_y: int,
        shape: tuple[int, ...],
        device: torch.device,
        x_map: Callable[[int], nvrtc.TensorMap] | None = None,
    ) -> None:
        self._launch = nvrtc.Launch(kernel, grid, threads, arguments)
        self._at_x, self._shape, self._index, self._x_map = at_x, shape, device.index, x_map
        self._x, self._y = c_void_p(), c_void_p()
        self._launch.give(at_x, self._x)
        self._launch.give(at_y, self._y)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product; x is contiguous, on the device and of the prepared shape."""
        y = x.new_empty(self._shape)
        self._y.value = y.data_ptr()
        if self._x_map is None:
            self._x.value = x.data_ptr()
        else:
            self._launch.give(self._at_x, self._x_map(x.data_ptr()))
        if torch._C._cuda_getDevice() == self._index:
            self._launch(torch._C._cuda_getCurrentRawStream(self._index))
        else:
            with torch.cuda.device(self._index):
                self._launch(torch._C._cuda_getCurrentRawStream(self._index))
        return y


class _Products(threading.local):
    """Products per thread: another must not change arguments while they are read."""

    def __init__(self) -> None:
        self.products: dict[Key, Ready] = {}


_cache = _Products()


def key_of(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Key | None:
    """Return all that a launch depends on; None if operands must be copied first."""
    if not (x.is_contiguous() and codes.is_contiguous() and scales.is_contiguous()):
        return None
    weight = (codes.data_ptr(), scales.data_ptr(), codes.shape[0], format, group_size)
    place = (x.get_device(), x.data_ptr() % 16, x.shape, x.dtype)
    if bias is None:
        return (*weight, *place)
    return (*weight, *place, bias.data_ptr(), bias.dtype, bias.stride())


def find(key: Key | None) -> Ready | None:
    """Return the product from this thread's cache, else None."""
    return _cache.products.get(key) if key is not None else None


def keep(key: Key | None, product: Ready) -> Ready:
    """Store the product in the cache and return it."""
    if key is not None:
        if len(_cache.products) >= MOST_KEPT:
            _cache.products.clear()
        _cache.products[key] = product
    return product
