"""Number formats on NVIDIA GPUs: `kernels.cu`, compiled at run time, one launch per tensor."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chop import nvrtc
from chop.log import get_logger

FORMATS = ("Fixed", "Float", "WideFloat", "Log", "BlockFixed", "BlockFloat", "BlockLog")
"""Structs of `exact.h`, in the order of the table in `kernels.cpp`."""
STORED = {torch.float32: "Float32", torch.bfloat16: "Bfloat16", torch.float16: "Float16"}
THREADS = 256
BYTES_AT_ONCE = 16
"""Bytes per read of a thread if all is aligned."""
MOST_LAUNCHES = 1024
"""Prepared launches that are kept, for tensors and for gradients."""
Bounds = tuple[float, float] | None

_log = get_logger(__name__)


@functools.cache
def is_usable(device: torch.device) -> bool:
    """Return True if kernels can be compiled for `device`; log a warning once if not."""
    is_off = os.environ.get("MASE_NATIVE", "1") == "0"
    if is_off or torch.version.cuda is None or not torch.cuda.is_available():
        return False
    try:
        _mask(device)
    except nvrtc.CudaError as error:
        _log.warning("%s: number formats use the PyTorch path. %s", device, error)
        return False
    return True


class LaunchSettings(NamedTuple):
    """Launch settings of a kernel."""

    vector: int  # elements per read of a thread
    lanes: int  # threads that share a block, 0 without blocks
    is_whole: bool  # the lanes cover all of every block
    threads: int
    sizes: tuple[int, ...]  # arguments of the kernel


class _PreparedLaunch:
    """A launch for tensors of one shape, of which only the addresses change.

    Preparing one takes longer than the kernel of a small tensor.
    """

    def __init__(
        self, device: torch.device, function: nvrtc.Function, threads: int, tensors: int,
        arguments: Sequence[Any],
    ) -> None:  # fmt: skip
        self._device, self._lock = device, threading.Lock()  # gradients come from another thread
        self._addresses = [c_void_p() for _ in range(tensors)]
        grid = (-(-threads // THREADS), 1, 1)
        self._launch = nvrtc.Launch(function, grid, THREADS, [*self._addresses, *arguments])

    def __call__(self, *addresses: int) -> None:
        with self._lock, nvrtc.made_current(self._device):
            for place, address in zip(self._addresses, addresses, strict=True):
                place.value = address
            self._launch(nvrtc.raw_stream(self._device))


def quantize(
    x: Tensor, kernel: int, rounding: int, block: int, parameters: tuple[float, ...]
) -> Tensor:
    """Return the values of `x`, which is contiguous; settings as in `Kernel.run`."""
    y = torch.empty_like(x)
    if x.numel():
        _run(x, y, (kernel, rounding, block, parameters))
    return y


def quantize_with_gradient(
    x: Tensor, kernel: int, rounding: int, block: int, parameters: tuple[float, ...],
    bounds: Bounds,
) -> Tensor:  # fmt: skip
    """Return the values of `x`, contiguous and not empty, with a straight-through gradient.

    The result is that of a torch op with this gradient, whose memory the kernel then overwrites
    unseen by torch: the backward pass runs without Python. `bounds`: the gradient is zero outside.
    """
    settings = kernel, rounding, block, parameters
    if bounds is None:
        y = x.clone()
        _run(x, y, settings)
        return y
    outside = torch.empty_like(x, dtype=torch.bool)
    y = x.masked_fill(outside, 0.0)
    _run(x, y, settings, bounds, outside.data_ptr())
    return y


def _run(
    x: Tensor, y: Tensor, settings: tuple[Any, ...], bounds: Bounds = None, *more: int
) -> None:
    source, target = x.data_ptr(), y.data_ptr()
    is_aligned = (source | target) % BYTES_AT_ONCE == 0
    launch = _prepared(x.device, x.dtype, x.shape, is_aligned, *settings, bounds)
    launch(source, target, *more)


@functools.lru_cache(maxsize=MOST_LAUNCHES)
def _prepared(
    device: torch.device, dtype: torch.dtype, shape: torch.Size, is_aligned: bool,
    kernel: int, rounding: int, block: int, parameters: tuple[float, ...], bounds: Bounds,
) -> _PreparedLaunch:  # fmt: skip
    vector = BYTES_AT_ONCE // dtype.itemsize if is_aligned else 1
    has_blocks = FORMATS[kernel].startswith("Block")
    launch = _for_blocks(shape, vector, block) if has_blocks else _for_elements(shape, vector)
    function = _quantize(device, kernel, rounding, dtype, *launch[:3], bounds is not None)
    arguments: list[Any] = [*map(c_int64, launch.sizes), (c_float * 8)(*parameters)]
    if bounds is not None:  # compared in the type of `x`, as torch does
        arguments += map(c_float, torch.tensor(bounds).to(dtype).tolist())
    tensors = 2 if bounds is None else 3
    return _PreparedLaunch(device, function, launch.threads, tensors, arguments)


def _for_elements(shape: torch.Size, vector: int) -> LaunchSettings:
    return LaunchSettings(vector, 0, False, -(-shape.numel() // vector), (shape.numel(),))


def _for_blocks(shape: torch.Size, vector: int, block: int) -> LaunchSettings:
    columns = shape[-1] if shape else 1
    block = min(block, columns) if block > 0 else columns
    vector = vector if columns % vector == 0 and block % vector == 0 else 1
    lanes = min(32, 1 << (-(-block // vector) - 1).bit_length())
    rows, across = shape.numel() // columns, -(-columns // block)
    is_whole = columns % block == 0 and block == lanes * vector
    return LaunchSettings(
        vector, lanes, is_whole, rows * across * lanes, (rows, columns, block, across)
    )


def mask(gradient: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """Return the gradient where low <= x <= high, else 0; both contiguous, in float32."""
    out = torch.empty_like(gradient)
    launch = _prepared_mask(x.device, x.numel(), low, high)
    launch(gradient.data_ptr(), x.data_ptr(), out.data_ptr())
    return out


@functools.lru_cache(maxsize=MOST_LAUNCHES)
def _prepared_mask(device: torch.device, size: int, low: float, high: float) -> _PreparedLaunch:
    arguments = [c_int64(size), c_float(low), c_float(high)]
    return _PreparedLaunch(device, _mask(device), size, 3, arguments)


@functools.cache
def _quantize(
    device: torch.device, kernel: int, rounding: int, dtype: torch.dtype, vector: int, lanes: int,
    is_whole: bool, has_range: bool,
) -> nvrtc.Function:  # fmt: skip
    return _function(
        device, "quantize", FORMAT=FORMATS[kernel], ROUNDING=rounding, STORED=STORED[dtype],
        VECTOR=vector, LANES=lanes, IS_WHOLE=int(is_whole), HAS_RANGE=int(has_range),
    )  # fmt: skip


@functools.cache
def _mask(device: torch.device) -> nvrtc.Function:
    return _function(
        device, "mask_gradient", FORMAT="Fixed", ROUNDING=0, STORED="Float32", VECTOR=1, LANES=0
    )


def _function(device: torch.device, name: str, **defines: int | str) -> nvrtc.Function:
    image = nvrtc.compile_cuda(source(), defines, nvrtc.architecture(device))
    with nvrtc.made_current(device):
        return nvrtc.Function(image, name)


def source() -> str:
    """Return the source of the kernels: the formats, then the kernels."""
    here = Path(__file__)
    return "\n".join(here.with_name(name).read_text() for name in ("exact.h", "kernels.cu"))
