"""Packed linear on GPUs of compute capability 9.0, in CUDA C++.

For few rows of x, where reading the weight dominates, the kernels are `hopper_few.cu` (8-bit codes)
and `hopper_few4.cu` (4-bit codes); for more rows, `hopper_many.cu`. This module selects the kernel
and partitions the products of the first.
"""

from __future__ import annotations

import functools
from ctypes import c_int, c_void_p
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chop import nvrtc
from chop.kernels import hopper_few4, hopper_many
from chop.kernels.device import multiprocessors
from chop.kernels.packed_formats import PACKED_FORMATS
from chop.kernels.ready import Ready, find, keep, key_of

FOUR_BITS = tuple(name for name, row in PACKED_FORMATS.items() if row.element.bits == 4)
STEPS = {name: hopper_few4.STEP if name in FOUR_BITS else 64 for name in PACKED_FORMATS}
"""Formats with kernels; the number of columns is a multiple of the value."""
LARGEST_BATCH = 32
"""Most rows of x of the kernel for few rows."""
FEW = 16
"""Rows of x up to which that kernel is faster."""
LONG = 2048
"""Columns from which two blocks share them, if there are too few rows for all multiprocessors."""


@dataclass(frozen=True)
class Cut:
    """Partition of a product into blocks of `tiles` times 16 rows of the weight.

    A block has up to `batch` rows of x and one part of `split` of the columns, along which its
    `warps` take turns.
    """

    batch: int
    tiles: int
    warps: int
    split: int = 1

    @property
    def shared_bytes(self) -> int:
        """Bytes of the float32 sums of each warp, with four more per row."""
        return self.warps * self.batch * (16 * self.tiles + 4) * 4

    def blocks(self, rows: int) -> tuple[int, int, int]:
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
        }


def choose(batch: int, rows: int, columns: int, multiprocessors: int) -> Cut:
    """Return the fastest cut on an H200 among those tried (bench/kernels.py, section cuts).

    All multiprocessors should end at the same time. Tall blocks read x less often, and one of
    them fills a multiprocessor; where they would not come out even, small ones share it.
    """
    if batch > FEW:
        is_small = rows <= 32 * multiprocessors
        return Cut(32, tiles=1, warps=8) if is_small else Cut(32, tiles=2, warps=4, split=2)
    size = 8 if batch <= 8 else 16
    if rows <= 8 * multiprocessors and columns >= LONG:
        return Cut(size, tiles=1, warps=16, split=2)
    for tiles in (1, 2, 3):
        if rows <= 16 * tiles * multiprocessors:  # a block for each
            return Cut(size, tiles, warps=16)
    for tiles in (7, 6):
        if _is_even(-(-rows // (16 * tiles)), multiprocessors):
            return Cut(size, tiles, warps=8)
    return Cut(size, tiles=2, warps=8)


def _is_even(blocks: int, multiprocessors: int) -> bool:
    """Return True if few multiprocessors are idle while the last blocks run."""
    rounds = -(-blocks // multiprocessors)
    return rounds * multiprocessors <= 1.15 * blocks


def is_known(x: Tensor, rows: int, format: str) -> bool:
    """Return True if a kernel accepts `x` and a weight of `rows` rows."""
    columns = x.shape[-1]
    return (
        format in STEPS
        and x.dtype == torch.bfloat16
        and x.numel() > 0
        and columns % STEPS[format] == 0
        and (format not in FOUR_BITS or columns <= hopper_few4.MOST_COLUMNS)
        and (x.numel() <= LARGEST_BATCH * columns or is_for_many(x, rows))
        and x.data_ptr() % 16 == 0
        and is_present(x.device)
    )


def is_for_many(x: Tensor, rows: int) -> bool:
    """Return True if the kernel for many rows of x is faster."""
    columns = x.shape[-1]
    batch = x.numel() // columns
    return (
        FEW < batch <= hopper_many.LARGEST_BATCH
        and rows >= hopper_many.FEWEST_ROWS
        and columns >= hopper_many.FEWEST_COLUMNS
        and columns % hopper_many.SPAN == 0
    )


def kept_linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Tensor | None:
    """`linear`, if it has run on operands like these before; then nothing needs to be asked."""
    product = find(key_of(x, codes, scales, bias, format, group_size))
    return None if product is None else product(x)


def linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Tensor:
    """See `reference.linear`."""
    key = key_of(x, codes, scales, bias, format, group_size)
    x, codes, scales = x.contiguous(), _aligned(codes), _aligned(scales)
    original_bias = bias
    bias = None if bias is None else bias.to(x.dtype).contiguous()
    if is_for_many(x, codes.shape[0]):
        return hopper_many.linear(x, codes, scales, bias, format, group_size)
    prepare = hopper_few4.prepared if format in FOUR_BITS else prepared
    product = prepare(x, codes, scales, bias, format, group_size)
    if bias is original_bias and (codes.data_ptr(), scales.data_ptr()) == (key or ())[:2]:
        keep(key, product)
    return product(x)


def _aligned(packed: Tensor) -> Tensor:
    """Return the same bytes, contiguous and aligned to 16 bytes."""
    packed = packed.contiguous()
    return packed if packed.data_ptr() % 16 == 0 else packed.clone()


def prepared(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Ready:
    """Return `reference.linear` of these operands as a prepared launch."""
    rows, columns = codes.shape[0], x.shape[-1]
    cut = choose(x.numel() // columns, rows, columns, multiprocessors(x.device))
    return prepared_as(x, codes, scales, bias, format, group_size, cut)


def prepared_as(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    format: str,
    group_size: int,
    cut: Cut,
) -> Ready:
    """Return `prepared` with `cut`; all tensors are contiguous, x and bias in bfloat16."""
    columns, rows = x.shape[-1], codes.shape[0]
    tensors = (None, codes, scales, bias, None)
    pointers = [c_void_p(None if t is None else t.data_ptr()) for t in tensors]
    sizes = [c_int(n) for n in (x.numel() // columns, rows, columns)]
    kernel = _kernel(x.device, cut, format, group_size)
    shape, threads = (*x.shape[:-1], rows), 32 * cut.warps
    return Ready(kernel, cut.blocks(rows), threads, [*pointers, *sizes], 0, 4, shape, x.device)


@functools.cache
def is_present(device: torch.device) -> bool:
    """Return True if the device has capability 9.x and there is a run-time compiler."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    return nvrtc.is_available()


@functools.cache
def _kernel(device: torch.device, cut: Cut, format: str, group_size: int) -> nvrtc.Function:
    names = ("hopper.cuh", "hopper_few.cuh", "hopper_few.cu")
    source = "\n".join(Path(__file__).with_name(name).read_text() for name in names)
    image = nvrtc.compile_cuda(source, cut.defines(format, group_size), "sm_90")
    with torch.cuda.device(device):
        return nvrtc.Function(image, "packed_linear", cut.shared_bytes, starts_early=True)
