"""Number formats on NVIDIA GPUs: `kernels.cu`, compiled at run time, one launch per tensor."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from pathlib import Path
from typing import NamedTuple

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


def quantize(
    x: Tensor, kernel: int, rounding: int, block: int, parameters: tuple[float, ...]
) -> Tensor:
    """Return the values of `x`, which is contiguous; settings as in `Kernel.run`."""
    y = torch.empty_like(x)
    if x.numel() == 0:
        return y
    widest = BYTES_AT_ONCE // x.element_size()
    is_aligned = x.data_ptr() % BYTES_AT_ONCE == 0 and y.data_ptr() % BYTES_AT_ONCE == 0
    vector = widest if is_aligned else 1
    has_blocks = FORMATS[kernel].startswith("Block")
    launch = _for_blocks(x, vector, block) if has_blocks else _for_elements(x, vector)
    function = _quantize(x.device, kernel, rounding, x.dtype, *launch[:3])
    pointers = [c_void_p(x.data_ptr()), c_void_p(y.data_ptr())]
    values = (c_float * 8)(*parameters)
    arguments = [*pointers, *map(c_int64, launch.sizes), values]
    _launch(function, x.device, launch.threads, arguments)
    return y


def _for_elements(x: Tensor, vector: int) -> LaunchSettings:
    return LaunchSettings(vector, 0, False, -(-x.numel() // vector), (x.numel(),))


def _for_blocks(x: Tensor, vector: int, block: int) -> LaunchSettings:
    columns = x.shape[-1] if x.dim() else 1
    block = min(block, columns) if block > 0 else columns
    vector = vector if columns % vector == 0 and block % vector == 0 else 1
    lanes = min(32, 1 << (-(-block // vector) - 1).bit_length())
    rows, across = x.numel() // columns, -(-columns // block)
    is_whole = columns % block == 0 and block == lanes * vector
    return LaunchSettings(
        vector, lanes, is_whole, rows * across * lanes, (rows, columns, block, across)
    )


def mask(gradient: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """Return the gradient where low <= x <= high, else 0; both contiguous, in float32."""
    out = torch.empty_like(gradient)
    pointers = [c_void_p(t.data_ptr()) for t in (gradient, x, out)]
    arguments = [*pointers, c_int64(x.numel()), c_float(low), c_float(high)]
    _launch(_mask(x.device), x.device, x.numel(), arguments)
    return out


def _launch(
    function: nvrtc.Function, device: torch.device, threads: int, arguments: Sequence[object]
) -> None:
    with nvrtc.made_current(device):
        grid = (-(-threads // THREADS), 1, 1)
        function.launch(grid, THREADS, nvrtc.raw_stream(device), arguments)


@functools.cache
def _quantize(
    device: torch.device, kernel: int, rounding: int, dtype: torch.dtype, vector: int, lanes: int,
    is_whole: bool,
) -> nvrtc.Function:  # fmt: skip
    return _function(
        device, "quantize", FORMAT=FORMATS[kernel], ROUNDING=rounding, STORED=STORED[dtype],
        VECTOR=vector, LANES=lanes, IS_WHOLE=int(is_whole),
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
