"""Number formats on NVIDIA GPUs: `kernels.cu`, compiled at run time.

A launch takes one tensor, or all operands of a layer."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Iterable, Sequence
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
    sizes: tuple[int, int, int, int]  # rows, columns, block, blocks across a row


class KernelSettings(NamedTuple):
    """Kernel and rounding by number, block, parameters, and the range of the gradient."""

    kernel: int
    rounding: int
    block: int
    parameters: tuple[float, ...]
    bounds: Bounds = None


class _Tensor(ctypes.Structure):
    """A tensor of a launch, as `kernels.cu` declares it."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "y", "outside")),
        *((name, c_int64) for name in ("first", "rows", "columns", "block", "across")),
        ("parameters", c_float * 8),
        ("low", c_float),
        ("high", c_float),
    )


class _PreparedLaunch:
    """A launch for tensors of fixed shapes, of which only the addresses change.

    Preparing one takes longer than the kernel of a small tensor.
    """

    def __init__(
        self, device: torch.device, function: nvrtc.Function, tensors: ctypes.Array[_Tensor],
        blocks: int,
    ) -> None:  # fmt: skip
        self._device, self._lock = device, threading.Lock()  # gradients come from another thread
        self._tensors = list(tensors)  # each shares the memory of the array
        self._launch = nvrtc.Launch(function, (blocks, 1, 1), THREADS, [tensors])

    def __call__(self, addresses: Iterable[tuple[int, int, int]]) -> None:
        """Queue the kernel for the addresses of x, y and the flags of each tensor."""
        with self._lock, nvrtc.made_current(self._device):
            for tensor, (x, y, outside) in zip(self._tensors, addresses, strict=True):
                tensor.x, tensor.y, tensor.outside = x, y, outside
            self._launch(nvrtc.raw_stream(self._device))


def quantize(
    x: Tensor, kernel: int, rounding: int, block: int, parameters: tuple[float, ...]
) -> Tensor:
    """Return the values of `x`, which is contiguous; settings as in `Kernel.run`."""
    y = torch.empty_like(x)
    if x.numel():
        _run(x, y, KernelSettings(kernel, rounding, block, parameters))
    return y


def quantize_with_gradient(x: Tensor, settings: KernelSettings) -> Tensor:
    """Return the values of `x`, contiguous and not empty, with a straight-through gradient.

    The result is that of a torch op with this gradient, whose memory the kernel then overwrites
    unseen by torch: the backward pass runs without Python. Outside `bounds` the gradient is zero.
    """
    if settings.bounds is None:
        y = x.clone()
        _run(x, y, settings)
        return y
    outside = torch.empty_like(x, dtype=torch.bool)
    y = x.masked_fill(outside, 0.0)
    _run(x, y, settings, outside.data_ptr())
    return y


def _run(x: Tensor, y: Tensor, settings: KernelSettings, outside: int = 0) -> None:
    places = ((x.data_ptr(), y.data_ptr(), outside),)
    launch = _prepared("quantize", x.device, x.dtype, (x.shape,), _are_aligned(places), (settings,))
    launch(places)


class JointLaunch:
    """Launches for all operands of a layer, contiguous and of fixed shapes.

    `flag_starts` are the places of the first flag of each tensor, aligned; then their number.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, shapes: tuple[torch.Size, ...],
        settings: tuple[KernelSettings, ...],
    ) -> None:  # fmt: skip
        sizes = [-(-shape.numel() // BYTES_AT_ONCE) * BYTES_AT_ONCE for shape in shapes]
        self.shapes, self.flag_starts = shapes, tuple(itertools.accumulate(sizes, initial=0))
        self.has_range = settings[0].bounds is not None
        self._tensors = device, dtype, shapes
        self._settings = settings
        self._prepared: dict[tuple[str, bool], _PreparedLaunch] = {}

    def quantize(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Tensor | None]:
        """Return the values, and flags of the elements outside the range, if there is one."""
        flags = None
        if self.has_range:
            flags = torch.empty(self.flag_starts[-1], dtype=torch.bool, device=tensors[0].device)
        return self._run("quantize", tensors, flags), flags

    def clear_outside(self, gradients: Sequence[Tensor], flags: Tensor) -> list[Tensor]:
        """Return gradients with zeros where the flags of `quantize` are set."""
        return self._run("clear_outside", gradients, flags)

    def split_flags(self, flags: Tensor) -> list[Tensor]:
        """Return the flags of each tensor in its shape."""
        return [
            flags[start : start + shape.numel()].view(shape)
            for start, shape in zip(self.flag_starts, self.shapes, strict=False)
        ]

    def _run(self, name: str, tensors: Sequence[Tensor], flags: Tensor | None) -> list[Tensor]:
        results = [torch.empty_like(x) for x in tensors]
        base = 0 if flags is None else flags.data_ptr()
        places = [
            (x.data_ptr(), y.data_ptr(), base + start)
            for x, y, start in zip(tensors, results, self.flag_starts, strict=False)
        ]
        key = name, _are_aligned(places)
        if key not in self._prepared:
            self._prepared[key] = _prepared(name, *self._tensors, key[1], self._settings)
        self._prepared[key](places)
        return results


@functools.lru_cache(maxsize=MOST_LAUNCHES)
def joint_launch(
    device: torch.device, dtype: torch.dtype, shapes: tuple[torch.Size, ...],
    settings: tuple[KernelSettings, ...],
) -> JointLaunch | None:  # fmt: skip
    """Return the launch of several tensors; None if one kernel cannot take them all."""
    if common_launches(shapes, 1, settings) is None:
        return None
    return JointLaunch(device, dtype, shapes, settings)


def _are_aligned(places: Iterable[tuple[int, int, int]]) -> bool:
    together = 0
    for x, y, _ in places:
        together |= x | y
    return together % BYTES_AT_ONCE == 0


@functools.lru_cache(maxsize=MOST_LAUNCHES)
def _prepared(
    name: str, device: torch.device, dtype: torch.dtype, shapes: tuple[torch.Size, ...],
    is_aligned: bool, settings: tuple[KernelSettings, ...],
) -> _PreparedLaunch:  # fmt: skip
    """Return the launch of the kernel `name`, which takes all the tensors."""
    vector = BYTES_AT_ONCE // dtype.itemsize if is_aligned else 1
    launches = common_launches(shapes, vector, settings)
    assert launches is not None, "one tensor, or those of a joint launch"
    tensors, blocks = (_Tensor * len(shapes))(), 0
    for tensor, launch, own in zip(tensors, launches, settings, strict=True):
        tensor.first, blocks = blocks, blocks - (-launch.threads // THREADS)
        tensor.rows, tensor.columns, tensor.block, tensor.across = launch.sizes
        tensor.parameters = (c_float * 8)(*own.parameters)
        if own.bounds is not None:  # compared in the type of `x`, as torch does
            tensor.low, tensor.high = torch.tensor(own.bounds).to(dtype).tolist()
    first, whole = launches[0], all(launch.is_whole for launch in launches)
    has_range = settings[0].bounds is not None
    function = _quantize(
        device, name, *settings[0][:2], dtype, first.vector, first.lanes, whole, has_range,
        len(shapes),
    )  # fmt: skip
    return _PreparedLaunch(device, function, tensors, blocks)


def common_launches(
    shapes: tuple[torch.Size, ...], vector: int, settings: tuple[KernelSettings, ...]
) -> list[LaunchSettings] | None:
    """Return the launch settings of each tensor, for one kernel; None if no kernel fits all."""
    if len({(own.kernel, own.rounding, own.bounds is None) for own in settings}) > 1:
        return None
    launches = [_launch(s, vector, own) for s, own in zip(shapes, settings, strict=True)]
    if len({launch[:2] for launch in launches}) > 1:
        launches = [_launch(s, 1, own) for s, own in zip(shapes, settings, strict=True)]
    return launches if len({launch[:2] for launch in launches}) == 1 else None


def _launch(shape: torch.Size, vector: int, settings: KernelSettings) -> LaunchSettings:
    has_blocks = FORMATS[settings.kernel].startswith("Block")
    return (
        _for_blocks(shape, vector, settings.block) if has_blocks else _for_elements(shape, vector)
    )


def _for_elements(shape: torch.Size, vector: int) -> LaunchSettings:
    size = shape.numel()
    return LaunchSettings(vector, 0, False, -(-size // vector), (1, size, 0, 0))


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
    arguments = [
        *(c_void_p(tensor.data_ptr()) for tensor in (gradient, x, out)),
        c_int64(x.numel()), c_float(low), c_float(high),
    ]  # fmt: skip
    with nvrtc.made_current(x.device):
        grid = (-(-x.numel() // THREADS), 1, 1)
        _mask(x.device).launch(grid, THREADS, nvrtc.raw_stream(x.device), arguments)
    return out


@functools.cache
def _quantize(
    device: torch.device, name: str, kernel: int, rounding: int, dtype: torch.dtype, vector: int,
    lanes: int, is_whole: bool, has_range: bool, tensors: int,
) -> nvrtc.Function:  # fmt: skip
    return _function(
        device, name, FORMAT=FORMATS[kernel], ROUNDING=rounding, STORED=STORED[dtype],
        VECTOR=vector, LANES=lanes, IS_WHOLE=int(is_whole), HAS_RANGE=int(has_range),
        TENSORS=tensors,
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
