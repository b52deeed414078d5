"""Packed MXINT8 linear for few rows of x on GPUs of compute capability 9.0, in CUDA C++.

`hopper.cu` says how it works; here is when it is used, and how a product is cut up.
"""

from __future__ import annotations

import functools
from ctypes import c_int, c_void_p
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chop.kernels import nvrtc

STEP = 64
"""Columns that a warp takes at a time: their number must be a multiple."""
LARGEST_BATCH = 32
FEW_BLOCKS = 2
"""Up to so many blocks per multiprocessor, each gets more warps."""


@dataclass(frozen=True)
class Cut:
    """How a product is cut up: a block has `tiles` times 16 rows of the weight and up to `batch`
    rows of x, its `warps` take turns along the columns, of which it has one part of `split`."""

    batch: int
    tiles: int
    warps: int
    split: int = 1

    def blocks(self, rows: int) -> tuple[int, int, int]:
        """The grid for a weight of `rows` rows."""
        return -(-rows // (16 * self.tiles)), self.split, 1

    def defines(self, group_size: int) -> dict[str, int]:
        """The constants of the kernel."""
        return {
            "GROUP": group_size,
            "BATCH": self.batch,
            "TILES": self.tiles,
            "WARPS": self.warps,
            "SPLIT": self.split,
        }


def choose(batch: int, rows: int, multiprocessors: int) -> Cut:
    """The cut that was fastest on an H200 among those tried (bench/kernels.py, section cuts)."""
    if batch <= 8:
        is_few = rows <= 16 * FEW_BLOCKS * multiprocessors
        return Cut(8, tiles=1, warps=16 if is_few else 8)
    is_few = rows <= 16 * FEW_BLOCKS * multiprocessors
    if batch <= 16:
        return Cut(16, tiles=2, warps=8 if is_few else 4, split=2)
    return Cut(32, tiles=1, warps=8) if is_few else Cut(32, tiles=2, warps=4, split=2)


def is_known(x: Tensor, format: str, group_size: int) -> bool:
    """Whether this kernel can do it."""
    columns = x.shape[-1]
    return (
        format == "mxint8"
        and x.dtype == torch.bfloat16
        and 0 < x.numel() <= LARGEST_BATCH * columns
        and columns % max(STEP, group_size) == 0
        and x.data_ptr() % 16 == 0
        and is_present(x.device)
    )


def linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, group_size: int
) -> Tensor:
    """See `reference.linear`."""
    batch = x.numel() // x.shape[-1]
    cut = choose(batch, codes.shape[0], _multiprocessors(x.device))
    return run_linear(x, codes, scales, bias, group_size, cut)


def run_linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, group_size: int, cut: Cut
) -> Tensor:
    """`linear` with a given cut."""
    columns, rows = x.shape[-1], codes.shape[0]
    x, codes, scales = x.contiguous(), codes.contiguous(), scales.contiguous()
    bias = None if bias is None else bias.to(x.dtype).contiguous()
    y = torch.empty((*x.shape[:-1], rows), dtype=x.dtype, device=x.device)
    tensors = (x, codes, scales, bias, y)
    pointers = [c_void_p(None if t is None else t.data_ptr()) for t in tensors]
    sizes = [c_int(n) for n in (x.numel() // columns, rows, columns)]
    kernel = _kernel(x.device, cut, group_size)
    with torch.cuda.device(x.device):
        stream = torch.cuda.current_stream().cuda_stream
        kernel.launch(cut.blocks(rows), 32 * cut.warps, stream, [*pointers, *sizes])
    return y


@functools.cache
def is_present(device: torch.device) -> bool:
    """Whether the device is one of those, with a run-time compiler beside it."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    return nvrtc.is_available()


@functools.cache
def _kernel(device: torch.device, cut: Cut, group_size: int) -> nvrtc.Function:
    source = Path(__file__).with_suffix(".cu").read_text()
    image = nvrtc.compile_cuda(source, cut.defines(group_size), "sm_90")
    with torch.cuda.device(device):
        return nvrtc.Function(image, "mxint8_linear")


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
