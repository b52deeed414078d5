"""GPU back end in Triton: unpack, and multiply with the weight decoded in registers.

Products that `chop.kernels.hopper` has a kernel for use that kernel. A program of the linear kernel
owns `block_n` rows of the weight and `block_m` rows of activations. If that leaves multiprocessors
idle, `split` programs share the columns: each writes its part, and the last to finish adds them in
order, so that the result does not depend on timing.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from chop.kernels import hopper, reference
from chop.kernels.device import multiprocessors, tickets_for
from chop.kernels.packed_formats import KERNEL_CODES, PACKED_FORMATS, groups_of

MXINT8, MXINT4, MXFP4 = (tl.constexpr(KERNEL_CODES[n]) for n in ("mxint8", "mxint4", "mxfp4"))
"""Formats that `_whole` decodes by name; the other one is MXFP8."""


@triton.jit
def _whole(code, FORMAT: tl.constexpr):
    """Return the value of an element code (uint8) in units of its last place, as float32."""
    if FORMAT == MXINT8:
        value = code.to(tl.int8, bitcast=True).to(tl.float32)
    elif FORMAT == MXINT4:
        value = ((code.to(tl.int32) ^ 8) - 8).to(tl.float32)
    elif FORMAT == MXFP4:
        # Sign and lowest exponent bits of a float32, which then is the value times 2**-126: two
        # copies of the code, 28 and 22 bits up, of which the first keeps the sign alone.
        bits = (code.to(tl.uint32) * 0x10400000) & 0x81C00000
        value = bits.to(tl.float32, bitcast=True) * 2.0**127
    else:
        value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32) * 512.0
    return value


@triton.jit
def _weight(code, scale, FORMAT: tl.constexpr, SHIFT: tl.constexpr):
    """Element times scale, exact in float32; the unit goes to the scale, of which there are few."""
    unit: tl.constexpr = 2.0**-SHIFT
    return _whole(code, FORMAT) * (scale * unit)


@triton.jit
def _scale(byte):
    """2**(byte - 127), NaN for 255.

    The byte is the exponent; in both special cases the top bit of the fraction is set as well.
    """
    is_special = (byte == 0) | (byte == 255)
    bits = (byte.to(tl.int32) << 23) | tl.where(is_special, 1 << 22, 0)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _unpack_kernel(
    codes, scales, out, row_bytes, columns, row_groups, row_programs,
    FORMAT: tl.constexpr, SHIFT: tl.constexpr, GROUP_BYTES: tl.constexpr, PER_BYTE: tl.constexpr,
    GROUPS: tl.constexpr, IS_EVEN: tl.constexpr,
):  # fmt: skip
    """Unpack GROUPS groups of one row; if no row has a tail, all rows are one long row."""
    program = tl.program_id(0).to(tl.int64)
    row, place = program // row_programs, program % row_programs
    group = place * GROUPS + tl.arange(0, GROUPS)[:, None]
    byte = group * GROUP_BYTES + tl.arange(0, GROUP_BYTES)[None, :]
    has_group, has_byte = group < row_groups, byte < row_bytes
    code = tl.load(codes + row * row_bytes + byte, mask=has_byte, other=0)
    scale = _scale(tl.load(scales + row * row_groups + group, mask=has_group, other=0))
    if PER_BYTE == 1:
        value = _weight(code, scale, FORMAT, SHIFT)
        mask = has_byte
        column = byte
    else:
        low = _weight(code & 15, scale, FORMAT, SHIFT)
        high = _weight(code >> 4, scale, FORMAT, SHIFT)
        value = tl.interleave(low, high)
        column = group * (2 * GROUP_BYTES) + tl.arange(0, 2 * GROUP_BYTES)[None, :]
        mask = column < columns
    if IS_EVEN:
        mask = has_group & (column >= 0)
    tl.store(out + row * columns + column, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _linear_kernel(
    x, codes, scales, bias, y, partial, tickets,
    m_size, n_size, y_size, columns, row_bytes, row_groups,
    FORMAT: tl.constexpr, SHIFT: tl.constexpr, GROUP_BYTES: tl.constexpr, PER_BYTE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr, SPLIT: tl.constexpr,
    IS_EVEN: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """BLOCK_N rows of the weight times BLOCK_M rows of x; BLOCK_B bytes of a row at a time."""
    pid_n, pid_m, pid_k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUPS: tl.constexpr = BLOCK_B // GROUP_BYTES
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    has_n, has_m = n < n_size, m < m_size
    row = (n % n_size).to(tl.int64)[:, None]  # what lies beyond the last row is not stored
    x_row = x + (m % m_size).to(tl.int64)[None, :] * columns
    byte, group = tl.arange(0, BLOCK_B), tl.arange(0, GROUPS)
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for step in range(pid_k, tl.cdiv(row_bytes, BLOCK_B), SPLIT):
        at = step * BLOCK_B + byte
        at_group = step * GROUPS + group
        code_at = codes + row * row_bytes + at[None, :]
        scale_at = scales + row * row_groups + at_group[None, :]
        x_at = x_row + (at * PER_BYTE)[:, None]
        if IS_EVEN:
            code = tl.load(code_at, eviction_policy="evict_first")
            scale = _scale(tl.load(scale_at))
            first = tl.load(x_at)
        else:
            code = tl.load(code_at, mask=at[None, :] < row_bytes, other=0)
            scale = _scale(tl.load(scale_at, mask=at_group[None, :] < row_groups, other=127))
            first = tl.load(x_at, mask=(at * PER_BYTE)[:, None] < columns, other=0.0)
        scale = tl.broadcast_to(scale[:, :, None], (BLOCK_N, GROUPS, GROUP_BYTES))
        scale = tl.reshape(scale, (BLOCK_N, BLOCK_B))
        low = code if PER_BYTE == 1 else code & 15
        weight = _weight(low, scale, FORMAT, SHIFT).to(first.dtype)
        total = tl.dot(weight, first, total, input_precision="ieee")
        if PER_BYTE == 2:
            second = tl.load(x_at + 1, mask=(at * 2 + 1)[:, None] < columns, other=0.0)
            weight = _weight(code >> 4, scale, FORMAT, SHIFT).to(second.dtype)
            total = tl.dot(weight, second, total, input_precision="ieee")
    where = m.to(tl.int64)[None, :] * n_size + n[:, None]
    mask = has_n[:, None] & has_m[None, :]
    is_last = True
    if SPLIT > 1:
        tl.store(partial + pid_k.to(tl.int64) * y_size + where, total, mask=mask)
        tl.debug_barrier()  # the whole block has written before its ticket is drawn
        ticket_at = tickets + pid_m * tl.num_programs(0) + pid_n
        is_last = tl.atomic_add(ticket_at, 1, sem="acq_rel") == SPLIT - 1
        if is_last:
            total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
            for k in range(SPLIT):
                total += tl.load(
                    partial + k * y_size + where, mask=mask, other=0.0, cache_modifier=".cg"
                )
            tl.store(ticket_at, 0)
    if is_last:
        if HAS_BIAS:
            total += tl.load(bias + n, mask=has_n, other=0.0).to(tl.float32)[:, None]
        tl.store(y + where, total.to(y.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class Config:
    """Partition of a linear; `block_k` counts columns of the weight.

    One program has few bytes in flight, hence many programs: the columns are split until each
    multiprocessor has `per_sm` programs, or into `split` parts if that is set.
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    per_sm: int = 7
    split: int | None = None

    def parts(self, programs: int, steps: int, multiprocessors: int) -> int:
        """Return the number of parts of the `steps` along the columns."""
        count = self.split or round(self.per_sm * multiprocessors / programs)
        return max(1, min(count, steps // 2, MAX_SPLIT) if self.split is None else count)


MAX_SPLIT = 16
CONFIGS: tuple[tuple[int, Config], ...] = (
    (16, Config(16, 32, 128, warps=2, stages=4)),
    (32, Config(32, 64, 128, warps=4, stages=3, per_sm=4)),
    (64, Config(64, 64, 128, warps=4, stages=3, per_sm=3)),
)
"""Largest batch of each; beyond the last, unpacking once and the vendor's matmul win."""
UNPACK_SIZES = {1: (4096, 8), 2: (2048, 2)}
"""Elements per program and warps, by elements per byte: fastest on an H200."""
UNPACKED_AT_ONCE = 1 << 27
"""Elements of the weight per unpacking for a large batch."""


def unpack(
    codes: Tensor, scales: Tensor, format: str, group_size: int, columns: int, dtype: torch.dtype
) -> Tensor:
    """See `reference.unpack`."""
    if not _is_known(format, codes.device):
        return reference.unpack(codes, scales, format, group_size, columns, dtype)
    row = PACKED_FORMATS[format]
    out = torch.empty((*codes.shape[:-1], columns), dtype=dtype, device=codes.device)
    if out.numel() == 0:
        return out
    codes, scales = codes.contiguous(), scales.contiguous()
    rows, row_bytes, row_groups = out.numel() // columns, codes.shape[-1], scales.shape[-1]
    is_even = columns % group_size == 0
    if is_even:  # all rows are one
        rows, row_bytes, row_groups, columns = 1, codes.numel(), scales.numel(), out.numel()
    elements, warps = UNPACK_SIZES[row.per_byte]
    groups = elements // group_size
    row_programs = triton.cdiv(row_groups, groups)
    _unpack_kernel[(rows * row_programs,)](
        codes, scales, out, row_bytes, columns, row_groups, row_programs,
        FORMAT=KERNEL_CODES[format], SHIFT=row.element.shift,
        GROUP_BYTES=group_size // row.per_byte, PER_BYTE=row.per_byte, GROUPS=groups,
        IS_EVEN=is_even, num_warps=warps,
    )  # fmt: skip
    return out


def linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Tensor:
    """See `reference.linear`."""
    product = hopper.kept_linear(x, codes, scales, bias, format, group_size)
    if product is not None:
        return product
    if hopper.is_known(x, codes.shape[0], format):
        return hopper.linear(x, codes, scales, bias, format, group_size)
    batch = x.numel() // max(x.shape[-1], 1)
    config = next((c for limit, c in CONFIGS if batch <= limit), None)
    is_known = x.dtype != torch.float64 and _is_known(format, x.device)
    if config is None or x.numel() == 0 or not is_known:
        return reference.linear(
            x, codes, scales, bias, format, group_size, at_once=UNPACKED_AT_ONCE, unpack=unpack
        )
    return run_linear(x, codes, scales, bias, format, group_size, config)


def run_linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int,
    config: Config,
) -> Tensor:  # fmt: skip
    """Run `linear` with a configuration."""
    per_byte, columns, rows = PACKED_FORMATS[format].per_byte, x.shape[-1], codes.shape[0]
    x, codes, scales = x.contiguous(), codes.contiguous(), scales.contiguous()
    batch = x.numel() // columns
    y = torch.empty((*x.shape[:-1], rows), dtype=x.dtype, device=x.device)
    block_k = max(config.block_k, group_size, 16 * per_byte)
    blocks = (triton.cdiv(rows, config.block_n), triton.cdiv(batch, config.block_m))
    steps = triton.cdiv(columns, block_k)
    split = min(config.parts(blocks[0] * blocks[1], steps, multiprocessors(x.device)), steps)
    grid = (*blocks, split)
    partial, tickets = y, y
    if split > 1:
        partial = torch.empty((split, batch, rows), dtype=torch.float32, device=x.device)
        tickets = tickets_for(x.device, grid[0] * grid[1])
    _linear_kernel[grid](
        x, codes, scales, y if bias is None else bias, y, partial, tickets,
        batch, rows, y.numel(), columns, codes.shape[1], groups_of(columns, group_size),
        FORMAT=KERNEL_CODES[format], SHIFT=PACKED_FORMATS[format].element.shift,
        GROUP_BYTES=group_size // per_byte, PER_BYTE=per_byte,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_B=block_k // per_byte, SPLIT=split,
        IS_EVEN=columns % block_k == 0, HAS_BIAS=bias is not None,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return y


@functools.cache
def _is_known(format: str, device: torch.device) -> bool:
    """Return True if the device has the instructions; 8-bit floats need capability 8.9."""
    if device.type != "cuda" or format != "mxfp8":
        return True
    return torch.cuda.get_device_capability(device) >= (8, 9)
