"""Kernels for rounding with feedback on NVIDIA GPUs: `column_kernels.cu`.

A launch decides up to `BLOCK` columns of all rows. In PyTorch, each column takes about 20 launches.
Results are those of the PyTorch path, bit for bit, except that the errors of ranges are added in
another order.
"""

from __future__ import annotations

import functools
from ctypes import Structure, c_double, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chop import nvrtc
from chop.nn.quantizers import Quantizer, gpu_formats
from chop.nn.quantizers.kernels import ROUNDINGS
from chop.passes.ptq.solve.element_table import ElementTable, element_table

BLOCK = 128
"""Columns between two updates of all that follow; a launch decides no more."""
LANES, THREADS = 8, 64
"""Threads of a row, and of a CUDA block."""


class _Rule(Structure):
    _fields_ = (
        ("limits", c_void_p),
        ("values", c_void_p),
        ("count", c_int64),
        ("low", c_double),
        ("high", c_double),
        ("zero", c_double),
    )


class _Columns(Structure):
    _fields_ = (
        *((n, c_void_p) for n in ("work", "factors", "scales", "group", "errors", "mask")),
        *((n, c_int64) for n in ("work_stride", "mask_stride", "rows", "columns", "groups")),
        *((n, c_int64) for n in ("first", "last")),
        ("rule", _Rule),
    )


class _Groups(Structure):
    _fields_ = (
        *((n, c_void_p) for n in ("weight", "starts", "importance", "scales", "largest", "best")),
        *((n, c_int64) for n in ("rows", "columns", "groups", "trials")),
        ("tie", c_double),
        ("rule", _Rule),
    )


@dataclass(frozen=True)
class ColumnBlock:
    """Operands of a launch: a block of columns, a view of the whole weight's.

    `factors` (columns, columns) and `errors` (rows, columns) are contiguous, `scales` is (rows,
    groups). `group` is the group of each column (int32). `mask` is False for pruned weights.
    """

    work: Tensor
    factors: Tensor
    scales: Tensor
    group: Tensor
    errors: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class ColumnKernels:
    """Kernels for one format; `table` is None for integers with scales."""

    quantizer: Quantizer
    table: ElementTable | None
    device: torch.device

    def round(self, block: ColumnBlock, first: int, last: int) -> None:
        """Decide the columns from `first` to before `last`, and correct those that follow."""
        self._on_columns("round_columns", block, first, last)

    def move(self, block: ColumnBlock) -> None:
        """Decide all columns again; `errors` are the gradients, and `factors` the sums."""
        self._on_columns("move_columns", block, 0, block.work.shape[1])

    def _on_columns(self, name: str, block: ColumnBlock, first: int, last: int) -> None:
        work, mask, scales = block.work, block.mask, block.scales.contiguous()
        operands = _Columns(
            *map(_address, (work, block.factors, scales, block.group, block.errors, mask)),
            *(work.stride(0), 0 if mask is None else mask.stride(0)),
            *(*work.shape, scales.shape[1], first, last, self._rule),
        )
        self._launch(name, operands, len(work))

    def largest(self, weight: Tensor, starts: Tensor) -> Tensor:
        """Return the largest magnitude of each group, (rows, groups)."""
        rows, groups = len(weight), len(starts) - 1
        result = weight.new_empty(rows, groups)
        addresses = [_address(t) for t in (weight, starts, None, None, result, None)]
        operands = _Groups(*addresses, *weight.shape, groups, 0, 1.0, self._rule)
        self._launch("largest_of_groups", operands, rows * groups)
        return result

    def best(
        self, weight: Tensor, starts: Tensor, scales: Tensor, importance: Tensor, tie: float
    ) -> Tensor:
        """Return the number of the best of `scales` (trials, rows, groups) for each group.

        A later one must have an error below `tie` times the least.
        """
        trials, rows, groups = scales.shape
        result = torch.empty(rows, groups, dtype=torch.int32, device=weight.device)
        addresses = [_address(t) for t in (weight, starts, importance, scales, None, result)]
        operands = _Groups(*addresses, *weight.shape, groups, trials, tie, self._rule)
        self._launch("best_of_trials", operands, rows * groups)
        return result

    @functools.cached_property
    def _rule(self) -> _Rule:
        scaled = self.quantizer.scaled
        if scaled is not None:
            return _Rule(None, None, 0, *map(float, scaled.integers), float(scaled.zero_point))
        assert self.table is not None, f"{self.quantizer} has a table"
        limits, values = self._tables
        return _Rule(limits.data_ptr(), values.data_ptr(), len(values), 0.0, 0.0, 0.0)

    @functools.cached_property
    def _tables(self) -> tuple[Tensor, Tensor]:
        """Limits and values on the device."""
        assert self.table is not None, f"{self.quantizer} has a table"
        return self.table.limits.to(self.device), self.table.values.to(self.device)

    def _launch(self, name: str, operands: Structure, parts: int) -> None:
        """Queue a kernel with `LANES` threads for each of `parts` rows or groups."""
        if not parts:
            return
        scaled = self.quantizer.scaled
        rounding = None if scaled is None else scaled.rounding
        with nvrtc.made_current(self.device):
            stream = nvrtc.raw_stream(self.device)
            grid = (-(-parts * LANES // THREADS), 1, 1)
            kernel(self.device, name, rounding).launch(grid, THREADS, stream, [operands])


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def column_kernels(quantizer: Quantizer, weight: Tensor) -> ColumnKernels | None:
    """Return the kernels for a format and a weight; None if there are none.

    There are kernels for integers with scales, and for block formats of at most 256 values.
    """
    if weight.dtype != torch.float64 or not is_usable(weight.device):
        return None
    return _kernels_on(quantizer, weight.device)


@functools.lru_cache(maxsize=64)
def _kernels_on(quantizer: Quantizer, device: torch.device) -> ColumnKernels | None:
    if quantizer.scaled is not None:
        has_rounding = quantizer.scaled.rounding in ROUNDINGS
        return ColumnKernels(quantizer, None, device) if has_rounding else None
    table = None if quantizer.blocks is None else element_table(quantizer.blocks)
    return None if table is None else ColumnKernels(quantizer, table, device)


def is_usable(device: torch.device) -> bool:
    """Return True if kernels can be compiled for a device."""
    return device.type == "cuda" and gpu_formats.is_usable(device)


@functools.cache
def kernel(device: torch.device, name: str, rounding: str | None) -> nvrtc.Function:
    """Return a compiled kernel; `rounding` is that of integers with scales."""
    image = nvrtc.compile_cuda(source(), defines(rounding), nvrtc.architecture(device))
    with nvrtc.made_current(device):
        return nvrtc.Function(image, name)


def defines(rounding: str | None) -> dict[str, int | str]:
    """Return the constants that the source needs."""
    rule = {"RULE": "Table", "ROUNDING": 0}
    if rounding is not None:
        rule = {"RULE": "Integers", "ROUNDING": ROUNDINGS.index(rounding)}
    return {**rule, "BLOCK": BLOCK, "LANES": LANES}


def source() -> str:
    """Return the source of the kernels."""
    return Path(__file__).with_suffix(".cu").read_text()
