"""Packed linear for many rows of x on GPUs of compute capability 9.0, in CUDA C++.

`hopper_many.cu` describes the kernel; this module partitions products and launches it.
"""

from __future__ import annotations

import functools
from ctypes import c_int, c_void_p
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from chop import nvrtc
from chop.kernels.device import multiprocessors, tickets_for
from chop.kernels.packed_formats import PACKED_FORMATS

ROWS, SPAN, WORKERS = 128, 128, 256
"""Constants of the kernel: weight rows of a block, columns of a step, multiplying threads."""
LARGEST_BATCH = 256
BATCHES = (32, 64, 96, 128, 192, 256)
"""Choices of rows of x per block."""
SMALLEST_SHARED = 64
"""Fewest rows of x per block if several blocks share them."""
STAGES = 4
"""Most stages of the pipeline: a power of two, so that counting them takes no division."""
FEWEST_ROWS, FEWEST_COLUMNS = 2048, 1024
"""Smallest weights that were measured."""
MOST_SHARED = 227 << 10
SHORT = 16
"""Fewest steps of a part that is added through memory, if the rows of x could be shared instead."""


@dataclass(frozen=True)
class Tile:
    """Partition of a product into blocks of `batch` rows of x and 1 / `split` of the columns.

    The parts are added through the shared memory of a cluster of blocks if `is_clustered`, else
    through memory. `step` columns are a stage of the pipeline.
    """

    batch: int
    split: int = 1
    is_clustered: bool = False
    step: int = SPAN
    most_stages: int = STAGES
    bits: int = 8

    @property
    def stages(self) -> int:
        """Stages that fit into shared memory."""
        room = MOST_SHARED - 1024
        return min(self.most_stages, room // self._stage_bytes)

    @property
    def _stage_bytes(self) -> int:
        return (ROWS * self.bits // 8 + 2 * self.batch) * self.step

    @property
    def shared_bytes(self) -> int:
        """Bytes of the stages and their barriers, or of what follows them if that is more.

        That is what the blocks of a cluster send, and the transposed result.
        """
        sent = self.batch * ROWS * 4 if self.is_clustered else 0
        turned = self.batch * (2 * ROWS + 16)
        return max(self.stages * (self._stage_bytes + 16), sent, turned)

    @property
    def threads(self) -> int:
        """Threads that multiply, and those that load; see MOVES_REGISTERS in the kernel."""
        return WORKERS + (128 if self.batch > 128 else 32)

    def blocks(self, batch: int, rows: int) -> tuple[int, int, int]:
        """Return the grid for `batch` rows of x and a weight of `rows` rows."""
        return -(-rows // ROWS), self.split, -(-batch // self.batch)

    def defines(self, format: str, group_size: int) -> dict[str, int]:
        """Return the constants of the kernel."""
        return {
            "FORMAT": PACKED_FORMATS[format].kernel_code,
            "GROUP": group_size,
            "BATCH": self.batch,
            "STEP": self.step,
            "STAGES": self.stages,
            "SPLIT": self.split,
            "CLUSTERED": int(self.is_clustered),
        }


def choose(batch: int, rows: int, columns: int, multiprocessors: int) -> Tile:
    """Return the fastest tile on an H200 among those tried (bench/kernels.py, section tiles).

    All multiprocessors should have a block. Pairs of blocks share the columns if that many are
    idle: with the fewest rows of x per block for which they are, since more parts are added through
    memory, which pays off for many columns only.
    """
    blocks, steps = -(-rows // ROWS), columns // SPAN
    whole = next(n for n in BATCHES if n >= batch)
    is_long = batch <= 128 and 4 * blocks <= multiprocessors and steps // 4 >= SHORT
    sizes = [n for n in BATCHES if SMALLEST_SHARED <= n < whole and not is_long]
    pairs = [n for n in sizes if 2 * blocks * -(-batch // n) <= multiprocessors]
    size = pairs[0] if pairs else whole
    split = _split(multiprocessors // (blocks * -(-batch // size)), steps)
    return Tile(size, split, is_clustered=split == 2, step=64 if size > 128 else SPAN)


def _split(most: int, steps: int) -> int:
    """Return a power of two up to `most` that leaves each part at least two steps."""
    return max((n for n in (1, 2, 4) if n <= most and 2 * n <= steps), default=1)


def run_linear(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    format: str,
    group_size: int,
    tile: Tile,
) -> Tensor:
    """`linear` with a given tile; all tensors contiguous, on one device, x and bias in bfloat16."""
    (rows, row_bytes), columns = codes.shape, x.shape[-1]
    batch = x.numel() // columns
    y = torch.empty((*x.shape[:-1], rows), dtype=x.dtype, device=x.device)
    grid = tile.blocks(batch, rows)
    parts, tickets = None, None
    if tile.split > 1 and not tile.is_clustered:
        count = grid[0] * grid[2]
        parts = torch.empty(count * tile.split * tile.batch * ROWS, device=x.device)
        tickets = tickets_for(x.device, count)
    tensors = (scales, bias, y, parts, tickets)
    pointers = [c_void_p(None if t is None else t.data_ptr()) for t in tensors]
    maps = [
        nvrtc.tensor_map(
            codes.data_ptr(),
            nvrtc.UINT8,
            (rows, row_bytes),
            row_bytes,
            (ROWS, tile.step * tile.bits // 8),
        ),
        nvrtc.tensor_map(
            x.data_ptr(), nvrtc.BFLOAT16, (batch, columns), 2 * columns, (tile.batch, 64)
        ),
    ]
    sizes = [c_int(n) for n in (batch, rows, columns)]
    kernel = _kernel(x.device, tile, format, group_size)
    with nvrtc.made_current(x.device):
        stream = nvrtc.raw_stream(x.device)
        kernel.launch(grid, tile.threads, stream, [*maps, *pointers, *sizes])
    return y


def linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Tensor:
    """See `reference.linear`."""
    rows, columns = codes.shape[0], x.shape[-1]
    bits = PACKED_FORMATS[format].element.bits
    tile = _chosen(x.numel() // columns, rows, columns, multiprocessors(x.device), bits)
    return run_linear(x, codes, scales, bias, format, group_size, tile)


@functools.lru_cache(1024)
def _chosen(batch: int, rows: int, columns: int, multiprocessors: int, bits: int) -> Tile:
    return replace(choose(batch, rows, columns, multiprocessors), bits=bits)


def source(tile: Tile) -> str:
    """Return the source: shared header, instruction for the batch, kernel."""
    here = Path(__file__)
    shared, kernel = (here.with_name(n) for n in ("hopper.cuh", "hopper_many.cu"))
    return f"{shared.read_text()}\n{instruction(tile.batch)}\n{kernel.read_text()}"


def instruction(batch: int) -> str:
    """Return `wgmma(d, a, b)`: adds 64 x 16 in registers times 16 x `batch` to `d`."""
    count = batch // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f"%{count + i}" for i in range(4))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    inputs = ", ".join(f'"r"(a[{i}])' for i in range(4))
    return (
        "__device__ __forceinline__ void wgmma(float* d, const u32* a, u64 b) {\n"
        f'  asm volatile("wgmma.mma_async.sync.aligned.m64n{batch}k16.f32.bf16.bf16 "\n'
        f'      "{{{sums}}}, {{{operands}}}, %{count + 4}, 1, 1, 1, 0;"\n'
        f'      : {outputs} : {inputs}, "l"(b));\n}}\n'
    )


@functools.cache
def _kernel(device: torch.device, tile: Tile, format: str, group_size: int) -> nvrtc.Function:
    image = nvrtc.compile_cuda(source(tile), tile.defines(format, group_size), "sm_90a")
    with torch.cuda.device(device):
        return nvrtc.Function(image, "packed_linear", tile.shared_bytes, starts_early=True)
