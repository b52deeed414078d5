"""Packed 4-bit linear for few rows of x on GPUs of compute capability 9.0, in CUDA C++.

`hopper_few4.cu` says how it works; here is how a product is cut up, and the launch.
"""

from __future__ import annotations

import functools
from ctypes import c_int, c_void_p
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from chop import nvrtc
from chop.kernels.device import multiprocessors
from chop.kernels.packed_formats import PACKED_FORMATS, groups_of
from chop.kernels.ready import Ready

STEP = 32
"""Columns per step of a thread; the number of columns is a multiple."""
CHUNK, PANEL, BARRIERS = 128, 32, 2048
"""Constants of the kernel: columns of a chunk, scales of a panel, bytes of barriers."""
MOST_COLUMNS = 1 << 16
"""Limit from the number of barriers: one per panel of scales."""
MOST_SHARED = 227 << 10
LONG = 8192
"""Columns from which two blocks share them, if there are too few rows for tall blocks."""
TALLEST = 7
"""Most tiles of a block, limited by registers."""


@dataclass(frozen=True)
class ChunkCut:
    """Partition of a product into blocks of `tiles` times 16 rows of the weight.

    A block has up to `batch` rows of x and one part of `split` of the chunks, which its `warps`
    process in turn through `slots` (a multiple of `warps`). A multiprocessor has room for `blocks`,
    of this kernel or the next.
    """

    batch: int
    tiles: int
    warps: int
    split: int = 1
    slots: int = 8
    blocks: int = 1

    def shared_bytes(self, columns: int, group_size: int) -> int:
        """Return the bytes of slots and scales, or of the sums of each warp if more."""
        chunks = -(-columns // CHUNK)
        panels = -(-chunks // self.split) * CHUNK // group_size // PANEL + 2
        buffers = (
            self.slots * (self.tiles * 1024 + self.batch * 256) + panels * 16 * self.tiles * PANEL
        )
        sums = self.warps * self.batch * (16 * self.tiles + 4) * 4
        return BARRIERS + max(buffers, sums)

    def grid(self, rows: int) -> tuple[int, int, int]:
        """Return the grid for a weight of `rows` rows."""
        return -(-rows // (16 * self.tiles)), self.split, 1

    def defines(self, format: str, group_size: int) -> dict[str, int]:
        """Return the constants of the kernel."""
        return {
            "FORMAT": PACKED_FORMATS[format].kernel_code,
            "GROUP": group_size,
            "BATCH": self.batch,
            "TILES": self.tiles,
            "WARPS": self.warps,
            "SPLIT": self.split,
            "SLOTS": self.slots,
            "BLOCKS": self.blocks,
            "EAGER": int(self.slots == self.warps),
        }


@functools.lru_cache(1024)
def choose(batch: int, rows: int, columns: int, group_size: int, multiprocessors: int) -> ChunkCut:
    """Return the fastest cut on an H200 among those tried (bench/kernels.py, section cuts4).

    All multiprocessors should end at the same time, with blocks as tall as that allows: they read
    x less often.
    """
    size = next(n for n in (8, 16, 32) if n >= batch)
    cut = _cut(size, rows, columns, multiprocessors)
    while cut.shared_bytes(columns, group_size) > MOST_SHARED:
        cut = replace(cut, tiles=cut.tiles // 2)
    return cut


def _cut(size: int, rows: int, columns: int, multiprocessors: int) -> ChunkCut:
    tiles = -(-rows // (16 * multiprocessors))  # in one round
    if size == 32:
        return ChunkCut(size, tiles=min(tiles, 2), warps=8)
    if tiles > 2:
        return ChunkCut(size, tiles=_even(rows, multiprocessors), warps=8)
    is_half_idle = rows <= 8 * multiprocessors and columns >= 2 * CHUNK * 8
    if is_half_idle:
        return ChunkCut(size, tiles=tiles, warps=8, split=2)
    if columns >= LONG:
        return ChunkCut(size, tiles=2 * tiles, warps=12, split=2, slots=12)
    return ChunkCut(size, tiles=tiles, warps=8, slots=16, blocks=2)


def _even(rows: int, multiprocessors: int) -> int:
    """Return the tallest block whose rounds are nearly full, else the fullest."""

    def idle(tiles: int) -> float:
        blocks = -(-rows // (16 * tiles))
        return -(-blocks // multiprocessors) * multiprocessors / blocks

    sizes = range(TALLEST, 2, -1)
    return next((n for n in sizes if idle(n) < 1.1), min(sizes, key=idle))


def prepared(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Ready:
    """Return `reference.linear` of these operands as a prepared launch."""
    rows, columns = codes.shape[0], x.shape[-1]
    cut = choose(x.numel() // columns, rows, columns, group_size, multiprocessors(x.device))
    return prepared_as(x, codes, scales, bias, format, group_size, cut)


def prepared_as(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    format: str,
    group_size: int,
    cut: ChunkCut,
) -> Ready:
    """Return `prepared` with `cut`; all tensors are contiguous, x and bias in bfloat16."""
    columns, rows, device = x.shape[-1], codes.shape[0], x.device
    batch = x.numel() // columns

    def x_map(pointer: int) -> nvrtc.TensorMap:
        shape, box = (batch, columns), (cut.batch, 64)
        return nvrtc.tensor_map(pointer, nvrtc.BFLOAT16, shape, 2 * columns, box)

    maps = _weight_maps(codes.data_ptr(), scales.data_ptr(), rows, columns, group_size, cut.tiles)
    fixed = [c_void_p(None if t is None else t.data_ptr()) for t in (scales, bias, None)]
    sizes = [c_int(n) for n in (batch, rows, columns)]
    arguments = (maps[0], x_map(x.data_ptr()), maps[1], *fixed, *sizes)
    kernel = _kernel(device, cut, format, group_size, cut.shared_bytes(columns, group_size))
    shape = (*x.shape[:-1], rows)
    return Ready(kernel, cut.grid(rows), 32 * cut.warps, arguments, 1, 5, shape, device, x_map)


@functools.lru_cache(4096)
def _weight_maps(
    codes: int, scales: int, rows: int, columns: int, group_size: int, tiles: int
) -> tuple[nvrtc.TensorMap, nvrtc.TensorMap]:
    """Return the maps of codes and scales for the copy engine.

    It cannot copy scales whose rows are not aligned to 16 bytes; the kernel then does not use it.
    """
    row_bytes, groups = columns // 2, groups_of(columns, group_size)
    box = (16 * tiles, CHUNK // 2)
    of_codes = nvrtc.tensor_map(codes, nvrtc.UINT8, (rows, row_bytes), row_bytes, box)
    if groups % 16:
        return of_codes, of_codes
    box = (16 * tiles, PANEL)
    return of_codes, nvrtc.tensor_map(scales, nvrtc.UINT8, (rows, groups), groups, box)


def source() -> str:
    """Return the source of the kernel, with the shared headers."""
    names = ("hopper.cuh", "hopper_few.cuh", "hopper_few4.cu")
    return "\n".join(Path(__file__).with_name(name).read_text() for name in names)


@functools.cache
def _kernel(
    device: torch.device, cut: ChunkCut, format: str, group_size: int, shared_bytes: int
) -> nvrtc.Function:
    image = _image(cut, format, group_size)
    with torch.cuda.device(device):
        return nvrtc.Function(image, "packed_linear", shared_bytes, starts_early=True)


@functools.cache
def _image(cut: ChunkCut, format: str, group_size: int) -> bytes:
    return nvrtc.compile_cuda(source(), cut.defines(format, group_size), "sm_90")
