"""Native code for the formats, built at first use, behind two torch operators: `kernels.cpp` for
the CPU, and `kernels.cu` for NVIDIA GPUs.

The operators have rules for fake tensors, so tracers see them as they see any operator; where no
one is looking, the native code is called without them, which costs less. Under torch.compile the
formats use their PyTorch definition instead, which the compiler fuses; but what it makes of a block
format is slower than our kernel and takes long to compile, so that where no gradient is wanted,
blocks are left to the operator.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from chop import native
from chop.nn.quantizers import gpu

SOURCE = Path(__file__).with_name("kernels.cpp")
NAMES = ("fixed", "float", "wide_float", "log", "block_fixed", "block_float", "block_log")
ROUNDINGS = ("nearest_even", "nearest_away", "floor", "toward_zero")
"""Both in the order of the table in `kernels.cpp`; the kernels in that of `gpu.FORMATS` too."""
PLAIN = (Tensor, torch.nn.Parameter, FakeTensor)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
GRAIN = 1 << 15
"""Elements for which another thread pays."""
Question = TypeVar("Question", bound=Callable[..., bool])

_operators = torch.library.Library("mase", "FRAGMENT")
_operators.define("quantize(Tensor x, int kernel, int rounding, int block, float[] p) -> Tensor")
_operators.define("mask(Tensor gradient, Tensor x, float low, float high) -> Tensor")


def assume_constant_result(function: Question) -> Question:
    """`function`, asked once by torch.compile, outside of what it compiles.

    As `torch.compiler.assume_constant_result`, which imports the compiler for it: half the time
    that `from chop import MaseGraph` would take.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class Kernel(NamedTuple):
    """A row of `kernels.cpp` with its parameters; `block` is 0 for elements that stand alone."""

    name: str
    rounding: str
    parameters: tuple[float, ...]
    block: int = 0

    def run(self, x: Tensor) -> tuple[Tensor, bool]:
        """The values of `x`, same shape and dtype; whether `x` is known to lie in the range."""
        settings = NAMES.index(self.name), ROUNDINGS.index(self.rounding), self.block
        if x.is_cuda:
            run = torch.ops.mase.quantize if is_traced(x) else gpu.quantize
            return run(x.contiguous(), *settings, self.parameters), False
        is_float = x.dtype is torch.float32
        wide = x if is_float and x.is_contiguous() else x.float().contiguous()
        if is_traced(x):
            y, is_inside = torch.ops.mase.quantize(wide, *settings, self.parameters), False
        else:
            y, is_inside = _launch(wide, *settings, self.parameters)
        return (y if is_float else y.to(x.dtype)), is_inside

    def call(self, x: Tensor) -> Tensor:
        """The same as an operator that a compiler leaves alone."""
        settings = NAMES.index(self.name), ROUNDINGS.index(self.rounding), self.block
        taken = x if x.is_cuda else x.float()
        return torch.ops.mase.quantize(taken.contiguous(), *settings, self.parameters).to(x.dtype)


def can_call(x: Tensor) -> bool:
    """Whether code that is being compiled may `call` a kernel: where it is, without gradients."""
    if x.dtype not in DTYPES or torch.is_grad_enabled():
        return False
    return _has_kernels(x.device.type, x.device.index or 0)


@assume_constant_result
def _has_kernels(kind: str, index: int) -> bool:
    """Asked outside the compiler, which cannot follow how they are built. What is exported must not
    need them: it runs where we are not."""
    if torch.compiler.is_exporting():
        return False
    if kind == "cpu":
        return library() is not None
    return kind == "cuda" and gpu.is_usable(torch.device(kind, index))


def can_run(x: Tensor) -> bool:
    """Whether there is native code for such a tensor; subclasses keep the PyTorch definition."""
    return (
        type(x) in PLAIN
        and x.dtype in DTYPES
        and x.numel() > 0
        and (library() is not None if x.is_cpu else x.is_cuda and gpu.is_usable(x.device))
    )


def is_traced(x: Tensor) -> bool:
    """Whether someone must see the operator: a fake tensor's mode, a tracer, a transform."""
    return (
        type(x) is FakeTensor
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
    )


def can_mask(gradient: Tensor, x: Tensor) -> bool:
    """Whether `mask` takes these two."""
    return can_run(x) and all(
        t.dtype == torch.float32 and t.is_contiguous() and t.device == x.device
        for t in (gradient, x)
    )


def mask(gradient: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """The gradient where low <= x <= high, else 0, in one pass."""
    return torch.ops.mase.mask(gradient, x, low, high)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The built kernels, or None where they cannot be built."""
    built = native.load(SOURCE, native.openmp_flags(), ())
    if built is None:
        return None
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    built.mase_quantize.argtypes = [
        number, number, pointer, pointer, size, size, size, pointer, number,
    ]  # fmt: skip
    built.mase_mask.argtypes = [
        pointer, pointer, pointer, size, ctypes.c_float, ctypes.c_float, number,
    ]  # fmt: skip
    built.mase_quantize.restype, built.mase_mask.restype = ctypes.c_bool, None
    return built


@functools.lru_cache(maxsize=1024)
def _packed(parameters: tuple[float, ...]) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * len(parameters))(*parameters)


def _threads(elements: int) -> int:
    return min(torch.get_num_threads(), elements // GRAIN + 1)


def _launch(
    x: Tensor, kernel: int, rounding: int, block: int, parameters: tuple[float, ...]
) -> tuple[Tensor, bool]:
    built, y = library(), torch.empty_like(x)
    assert built is not None, "called only where the library is built"
    n = x.numel()
    if n == 0:
        return y, True
    columns = x.shape[-1] if x.dim() else 1
    block = min(block, columns) if block > 0 else columns
    is_inside = built.mase_quantize(
        kernel, rounding, x.data_ptr(), y.data_ptr(), n // columns, columns, block,
        _packed(parameters), _threads(n),
    )  # fmt: skip
    return y, is_inside


def _run_quantize(x: Tensor, kernel: int, rounding: int, block: int, p: list[float]) -> Tensor:
    return _launch(x, kernel, rounding, block, tuple(p))[0]


def _run_mask(gradient: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    built, out = library(), torch.empty_like(gradient)
    assert built is not None, "called only where the library is built"
    n = x.numel()
    built.mase_mask(gradient.data_ptr(), x.data_ptr(), out.data_ptr(), n, low, high, _threads(n))
    return out


def _run_quantize_on_gpu(
    x: Tensor, kernel: int, rounding: int, block: int, p: list[float]
) -> Tensor:
    return gpu.quantize(x, kernel, rounding, block, tuple(p))


_operators.impl("quantize", _run_quantize, "CPU")
_operators.impl("mask", _run_mask, "CPU")
_operators.impl("quantize", _run_quantize_on_gpu, "CUDA")
_operators.impl("mask", gpu.mask, "CUDA")
torch.library.register_fake("mase::quantize", lambda x, *settings: torch.empty_like(x))
torch.library.register_fake("mase::mask", lambda gradient, *rest: torch.empty_like(gradient))
