"""Instructions of a native decode step: records that `step.cpp` reads, and the program of them.

A program works on tensors with fixed addresses. `StepProgram.add` records an instruction; whether
threads must wait before it follows from the tensors it reads.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop import native
from chop.kernels.step_memory import share_memory

SOURCE = Path(__file__).with_name("step.cpp")
DIMENSIONS = 4
KINDS = (
    "elementwise", "row_sums", "layer_norm", "embed", "embed_packed", "float_product",
    "transposed_product", "packed_product", "append", "attend",
)  # fmt: skip
"""Kinds of instructions, in the order of `Kind` in `step.cpp`."""
FUNCTIONS = (
    "add", "sub", "mul", "div", "pow", "silu_times", "copy", "neg", "rsqrt", "sqrt", "cos", "sin",
    "tanh", "exp", "sigmoid", "silu", "gelu", "gelu_tanh", "relu",
)  # fmt: skip
"""Elementwise functions, in the order of `ROWS_OF` in `step_ops.h`."""
PLAIN = (Tensor, torch.nn.Parameter)
LEAST_SHARED = 1024
"""Elements from which threads share an elementwise instruction: a wait takes about 1 µs."""


class UnsupportedError(Exception):
    """Reason why a step has no native program; the caller then uses its PyTorch path."""


class _View(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("step", ctypes.c_int64 * DIMENSIONS))


class Instruction(ctypes.Structure):
    """Fields of `Instruction` in `step_ops.h`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "function", "waits", "is_shared")),
        ("size", ctypes.c_int64 * DIMENSIONS),
        *((name, _View) for name in ("out", "a", "b")),
        ("more", ctypes.c_void_p * 4),
        ("whole", ctypes.c_int64 * 6),
        ("number", ctypes.c_double * 2),
    )


class LayerRecord(ctypes.Structure):
    """Fields of `Layer` in `step_ops.h`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("key", "value")),
        *((name, ctypes.c_int64) for name in ("key_row", "value_row", "key_head", "value_head")),
        *((name, ctypes.c_int64) for name in ("tokens", "is_updated_by_caller")),
    )


class ScoreStep(ctypes.Structure):
    """Fields of `ScoreStep` in `step_ops.h`."""

    _fields_ = (("function", ctypes.c_int64), ("number", ctypes.c_double))


Update = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)
"""Function that adds the new tokens to a layer of the cache; 0 if it failed."""


class PastRecord(ctypes.Structure):
    """Fields of `Past` in `step_ops.h`."""

    _fields_ = (
        ("layers", ctypes.POINTER(LayerRecord)),
        ("update", Update),
        ("starts", ctypes.POINTER(ctypes.c_int64)),
        *((name, ctypes.c_int64) for name in ("length", "is_sequence", "rows", "used")),
        *((name, ctypes.c_int64) for name in ("results_from", "first_result")),
        *((name, ctypes.POINTER(ctypes.c_int64)) for name in ("pages", "stored")),
        ("pages_step", ctypes.c_int64),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the built executor, None if it cannot be built."""
    built = native.load(SOURCE, native.openmp_flags())
    if built is None:
        return None
    past, pointer = ctypes.POINTER(PastRecord), ctypes.c_void_p
    built.mase_step.argtypes = [pointer, ctypes.c_int64, past, ctypes.c_int, pointer]
    built.mase_step_shares_rows.argtypes = [ctypes.c_int]
    built.mase_step.restype = built.mase_step_shares_rows.restype = ctypes.c_int
    return built


class StepProgram:
    """Instructions of one step, with the tensors that they read and write."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.kept: list[Any] = []
        self.buffers: list[Tensor] = []
        self.parameters: list[torch.nn.Parameter] = []
        self._fresh: dict[int, bool] = {}  # storage written since the last wait -> is shared

    def empty(self, *shape: int) -> Tensor:
        """Return a new buffer."""
        buffer = torch.zeros(shape)
        self.buffers.append(buffer)
        return buffer

    def share_memory(self, pinned: Sequence[Tensor]) -> None:
        """Let buffers share memory, but for `pinned`; views of the others lose theirs."""
        self.kept.append(share_memory(self.instructions, self.buffers, pinned))
        self.kept.extend(pinned)
        self.buffers = []

    def add(
        self,
        kind: str,
        written: Tensor,
        reads: Sequence[Tensor],
        *,
        is_shared: bool = False,
        **fields: Any,
    ) -> None:
        """Record an instruction; `fields` are those of `Instruction`."""
        storages = [_storage(x) for x in reads]
        waits = any(is_shared or self._fresh[s] for s in storages if s in self._fresh)
        if waits:
            self._fresh = {}
        storage = _storage(written)
        self._fresh[storage] = self._fresh.get(storage, False) or is_shared
        record = Instruction(kind=KINDS.index(kind), waits=waits, is_shared=is_shared)
        for name, value in fields.items():
            target = getattr(record, name)
            if isinstance(value, int):
                setattr(record, name, value)
            elif isinstance(value, tuple) and name in ("out", "a", "b"):
                target.at = value[0]
                target.step[:] = (*value[1], *[0] * (DIMENSIONS - len(value[1])))
            else:
                target[: len(value)] = value
        self.instructions.append(record)

    def weight(self, tensor: Tensor | None) -> int | None:
        """Return the address of a weight, None without one."""
        if tensor is None:
            return None
        if not tensor.is_contiguous() or not tensor.is_cpu or type(tensor) not in PLAIN:
            raise UnsupportedError("a weight that is not contiguous on the CPU")
        self.watch(tensor)
        return tensor.data_ptr()

    def watch(self, tensor: Tensor) -> None:
        """Keep the memory of a tensor, and note a parameter, whose memory may be exchanged."""
        self.kept.append(tensor.detach())
        is_new = all(tensor is not other for other in self.parameters)
        if isinstance(tensor, torch.nn.Parameter) and is_new:
            self.parameters.append(tensor)

    def finish(self) -> Any:
        """Return the instructions as one array."""
        return (Instruction * len(self.instructions))(*self.instructions)

    # -- common instructions -----------------------------------------------------------------------

    def elementwise(self, function: str, a: Tensor, b: Tensor | None = None) -> Tensor:
        """Apply a function to one or two tensors with broadcasting."""
        shape = a.shape if b is None else torch.broadcast_shapes(a.shape, b.shape)
        out = self.empty(*shape)
        self.elementwise_into(out, function, a, b)
        return out

    def elementwise_into(
        self, out: Tensor, function: str, a: Tensor, b: Tensor | None = None
    ) -> None:
        """Apply a function and write the result to `out`, which may be a view."""
        if any(x.dtype != torch.float32 for x in (a, a if b is None else b)):
            raise UnsupportedError(f"'{function}' of another dtype than float32")
        operands = [out, a.expand(out.shape), (a if b is None else b).expand(out.shape)]
        size, steps = _collapsed(out.shape, [x.stride() for x in operands])
        views = [(x.data_ptr(), step) for x, step in zip(operands, steps, strict=True)]
        self.add(
            "elementwise",
            out,
            [a] if b is None else [a, b],
            is_shared=out.numel() >= LEAST_SHARED,
            function=FUNCTIONS.index(function),
            size=size,
            **dict(zip(("out", "a", "b"), views, strict=True)),
        )

    def contiguous(self, x: Tensor) -> Tensor:
        """Return `x`, or a contiguous copy of it."""
        return x if x.is_contiguous() else self.elementwise("copy", x)

    def constant(self, value: float) -> Tensor:
        """Return a tensor with one number."""
        tensor = torch.tensor(float(value))
        self.kept.append(tensor)
        return tensor


def _storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _collapsed(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Return sizes and strides with dimensions of one dropped and adjacent ones merged."""
    dims = [
        (n, [s[i] for s in strides]) for i, n in enumerate(shape) if n != 1
    ]  # fmt: skip
    merged: list[tuple[int, list[int]]] = []
    for n, steps in dims:
        if merged and all(
            outer == inner * n for outer, inner in zip(merged[-1][1], steps, strict=True)
        ):
            merged[-1] = (merged[-1][0] * n, steps)
        else:
            merged.append((n, steps))
    if len(merged) > DIMENSIONS:
        raise UnsupportedError(f"a tensor of {len(merged)} separate dimensions")
    missing = DIMENSIONS - len(merged)
    padded = [(1, [0] * len(strides))] * missing + merged
    return [n for n, _ in padded], [[s[i] for _, s in padded] for i in range(len(strides))]
