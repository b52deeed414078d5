"""Native code for the formats, built at first use: `kernels.cpp` (CPU) and `kernels.cu` (NVIDIA).

Tracers see two torch operators, which have rules for fake tensors; eager calls skip the operators
to save time. torch.compile uses the PyTorch definition, which it fuses. Without gradients, block
formats stay operators: their compiled code would be slower than the kernel.
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
from chop.nn.quantizers import gpu_formats

SOURCE = Path(__file__).with_name("kernels.cpp")
NAMES = ("fixed", "float", "wide_float", "log", "block_fixed", "block_float", "block_log")
ROUNDINGS = ("nearest_even", "nearest_away", "floor", "toward_zero")
"""Both in the order of the table in `kernels.cpp`; names also in that of `gpu_formats.FORMATS`."""
PLAIN = (Tensor, torch.nn.Parameter, FakeTensor)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
GRAIN = 1 << 15
"""Elements per thread."""
Question = TypeVar("Question", bound=Callable[..., bool])

_operators = torch.library.Library("mase", "FRAGMENT")
_operators.define("quantize(Tensor x, int kernel, int rounding, int block, float[] p) -> Tensor")
_operators.define("mask(Tensor gradient, Tensor x, float low, float high) -> Tensor")


def assume_constant_result(function: Question) -> Question:
    """Mark `function` to run at compile time; torch's own decorator imports the compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class Kernel(NamedTuple):
    """A row of `kernels.cpp` with its parameters; `block` is 0 for formats without blocks."""

    name: str
    rounding: str
    parameters: tuple[float, ...]
    block: int = 0

    @property
    def settings(self) -> tuple[int, int, int]:
        """Number of the kernel, number of the rounding, and block."""
        return NAMES.index(self.name), ROUNDINGS.index(self.rounding), self.block

    def run(self, x: Tensor) -> tuple[Tensor, bool]:
        """Return the values of `x`, and True if `x` is known to be in the range."""
        settings = self.settings
        if x.is_cuda:
            run = torch.ops.mase.quantize if is_traced(x) else gpu_formats.quantize
            return run(x.contiguous(), *settings, self.parameters), False
        is_float = x.dtype is torch.float32
        wide = x if is_float and x.is_contiguous() else x.float().contiguous()
        if is_traced(x):
            y, is_inside = torch.ops.mase.quantize(wide, *settings, self.parameters), False
        else:
            y, is_inside = _launch(wide, *settings, self.parameters)
        return (y if is_float else y.to(x.dtype)), is_inside

    def call(self, x: Tensor) -> Tensor:
        """Return the values of `x` by the operator, which compilers do not trace into."""
        wide = (x if x.is_cuda else x.float()).contiguous()
        return torch.ops.mase.quantize(wide, *self.settings, self.parameters).to(x.dtype)

    def training_settings(self, bounds: tuple[float, float] | None) -> gpu_formats.KernelSettings:
        """Return the settings of a launch on a GPU; the gradient passes between `bounds`."""
        return gpu_formats.KernelSettings(*self.settings, self.parameters, bounds)


def can_call(x: Tensor) -> bool:
    """Return True if code under compilation may `call` a kernel; it has no gradient."""
    if x.dtype not in DTYPES or torch.is_grad_enabled():
        return False
    return _has_kernels(x.device.type, x.device.index or 0)


@assume_constant_result
def _has_kernels(kind: str, index: int) -> bool:
    # evaluated outside the compiler; an exported program must run without this package
    if torch.compiler.is_exporting():
        return False
    if kind == "cpu":
        return library() is not None
    return kind == "cuda" and gpu_formats.is_usable(torch.device(kind, index))


def can_run(x: Tensor) -> bool:
    """Return True if there is native code for `x`; tensor subclasses have none."""
    return (
        type(x) in PLAIN
        and x.dtype in DTYPES
        and x.numel() > 0
        and (library() is not None if x.is_cpu else x.is_cuda and gpu_formats.is_usable(x.device))
    )


def can_train(x: Tensor) -> bool:
    """Return True if a GPU kernel with a gradient accepts `x`: not under a tracer."""
    return x.is_cuda and not torch.compiler.is_compiling() and can_run(x) and not is_traced(x)


def is_traced(x: Tensor) -> bool:
    """Return True if a fake tensor mode, a tracer or a transform must see the operator."""
    return (
        type(x) is FakeTensor
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
    )


def can_mask(gradient: Tensor, x: Tensor) -> bool:
    """Return True if `mask` accepts these tensors."""
    return can_run(x) and all(
        t.dtype == torch.float32 and t.is_contiguous() and t.device == x.device
        for t in (gradient, x)
    )


def mask(gradient: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """Return the gradient where low <= x <= high, else 0, in one pass."""
    if is_traced(x):
        return torch.ops.mase.mask(gradient, x, low, high)
    return (gpu_formats.mask if x.is_cuda else _run_mask)(gradient, x, low, high)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the built kernels, None if they cannot be built."""
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


def _run_mask(gradient: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    built, out = library(), torch.empty_like(gradient)
    assert built is not None, "called only where the library is built"
    n = x.numel()
    built.mase_mask(gradient.data_ptr(), x.data_ptr(), out.data_ptr(), n, low, high, _threads(n))
    return out


_operators.impl("quantize", lambda x, k, r, b, p: _launch(x, k, r, b, tuple(p))[0], "CPU")
_operators.impl("mask", _run_mask, "CPU")
_operators.impl(
    "quantize", lambda x, k, r, b, p: gpu_formats.quantize(x, k, r, b, tuple(p)), "CUDA"
)
_operators.impl("mask", gpu_formats.mask, "CUDA")
torch.library.register_fake("mase::quantize", lambda x, *settings: torch.empty_like(x))
torch.library.register_fake("mase::mask", lambda gradient, *rest: torch.empty_like(gradient))
