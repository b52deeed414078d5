"""One call per operation: checks its input, then runs the back end of the tensor's device.

The operators are known to torch: tracers, fake tensors and torch.compile see them as any other,
and `packed_linear` has a gradient towards its input and its bias.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.kernels import cpu, reference
from chop.kernels.formats import (
    INTEGER_FORMATS,
    PACKED_FORMATS,
    PackedFormat,
    check_group_size,
    pack_format,
    packed_format,
)
from chop.nn.quantizers import MXInt
from chop.nn.quantizers.kernels import is_traced

PLAIN = (Tensor, torch.nn.Parameter)
INDEX_DTYPES = (torch.int32, torch.int64)
ROUNDED = MXInt(8, block_size=32)
"""The format to which a kernel rounds activations by itself."""

operators = torch.library.Library("mase", "FRAGMENT")
operators.define(
    "unpack(Tensor codes, Tensor scales, str format, int group_size, int columns, "
    "ScalarType dtype) -> Tensor"
)
operators.define(
    "packed_linear(Tensor x, Tensor codes, Tensor scales, Tensor? bias, str format, "
    "int group_size) -> Tensor"
)


@dataclass(frozen=True)
class PackedTensor:
    """A tensor in a packed format: element codes and one scale per group of its last dimension.

    >>> pack(torch.tensor([1.0, -0.5]), "mxint8", 16).codes.view(torch.int8).tolist()
    [64, -32]
    """

    codes: Tensor
    scales: Tensor
    format: str
    group_size: int
    columns: int

    def __post_init__(self) -> None:
        _check_packed(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return (*self.codes.shape[:-1], self.columns)

    @property
    def nbytes(self) -> int:
        """Bytes that codes and scales take."""
        return self.codes.nbytes + self.scales.nbytes


def pack(x: Tensor, format: str = "mxint8", group_size: int = 32) -> PackedTensor:
    """Return `x` rounded to the format, as bytes; groups lie along the last dimension.

    Unpacking gives exactly the values of the format's quantizer. `format` may spell the group size
    too: "mxint4/16".
    """
    _want(isinstance(x, Tensor), "pack", f"x must be a tensor, got {type(x).__name__}.")
    if isinstance(format, str) and "/" in format:
        format, group_size = pack_format(format, group_size, "pack")
    row = _format(format, "pack")
    check_group_size(group_size, "pack", is_integer=row.has_real_scales)
    _want(x.is_floating_point(), "pack", f"x must be a floating-point tensor, got {x.dtype}.")
    _want(x.dim() > 0, "pack", "x must have at least one dimension, got a scalar.")
    columns = x.shape[-1]
    rows = x.detach().reshape(math.prod(x.shape[:-1]), columns)
    codes, scales = reference.pack_rows(rows, row, group_size)
    lead = x.shape[:-1]
    return PackedTensor(
        codes.view(*lead, codes.shape[-1]),
        scales.view(*lead, scales.shape[-1]),
        row.name,
        group_size,
        columns,
    )


def pack_integers(whole: Tensor, scales: Tensor, group_size: int) -> PackedTensor:
    """A matrix of integers times `scales`, one for each row and group, as bytes: int4 where the
    integers lie in -8 … 7, else int8_group.

    >>> pack_integers(torch.tensor([[7.0, -8.0]]), torch.tensor([[-0.5]]), 16).codes.tolist()
    [[135]]
    """
    bits = 4 if bool(((whole >= -8) & (whole <= 7)).all()) else 8
    _want(
        bits == 4 or bool(((whole >= -128) & (whole <= 127)).all()),
        "pack_integers",
        "integers must lie in -128 … 127.",
    )
    row = INTEGER_FORMATS["int4" if bits == 4 else "int8_group"]
    codes = reference.join_codes(row.element.encode(whole.detach()), row)
    as_bytes = reference.scale_bytes(scales.detach())
    return PackedTensor(codes, as_bytes, row.name, group_size, whole.shape[-1])


def _want_packed(value: Any, where: str) -> None:
    told = f"expected a PackedTensor, got {type(value).__name__}. Make one: kernels.pack(x)."
    _want(isinstance(value, PackedTensor), where, told)


def unpack(packed: PackedTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values of `packed`, exact in float32 and rounded to nearest in narrower types."""
    _want_packed(packed, "unpack")
    _want(isinstance(dtype, torch.dtype), "unpack", f"dtype must be a torch.dtype, got {dtype!r}.")
    _want(dtype.is_floating_point, "unpack", f"dtype must be floating-point, got {dtype}.")
    return torch.ops.mase.unpack(
        packed.codes, packed.scales, packed.format, packed.group_size, packed.columns, dtype
    )


def packed_linear(x: Tensor, weight: PackedTensor, bias: Tensor | None = None) -> Tensor:
    """`x` times the transposed `weight` plus `bias`, in the dtype of `x`.

    The weight is never unpacked as a whole; what is read from memory is its bytes.
    """
    if not isinstance(weight, PackedTensor) or not _fits(x, weight, bias):
        _want_packed(weight, "packed_linear")
        _explain_misfit(x, weight, bias)
    return multiply(x, weight.codes, weight.scales, bias, weight.format, weight.group_size)


def multiply(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Tensor:
    """The operator on parts that are known to fit; where no one is looking, without its costs."""
    run = torch.ops.mase.packed_linear.default
    if torch.compiler.is_compiling():
        return run(x, codes, scales, bias, format, group_size)
    needs_gradient = x.requires_grad or (bias is not None and bias.requires_grad)
    if needs_gradient and torch.is_grad_enabled():
        return run(x, codes, scales, bias, format, group_size)
    if (x.is_cpu or x.is_cuda) and not _is_watched(x, codes):
        back_end = cpu if x.is_cpu else gpu_back_end(format)
        return back_end.linear(x, codes, scales, bias, format, group_size)
    with torch._C._AutoDispatchBelowAutograd():
        return run(x, codes, scales, bias, format, group_size)


def multiply_rounded(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Tensor | None:
    """`multiply` of `x` in `ROUNDED`, where one kernel does both and no one is looking; else None.

    The rounded values are those of the format, so the product is the same, bit for bit.
    """
    needs_gradient = x.requires_grad or (bias is not None and bias.requires_grad)
    is_seen = torch.compiler.is_compiling() or (needs_gradient and torch.is_grad_enabled())
    if not x.is_cpu or is_seen or _is_watched(x, codes):
        return None
    return cpu.rounded_linear(x, codes, scales, bias, format, group_size)


def _is_watched(x: Tensor, codes: Tensor) -> bool:
    """Whether someone must see the operator: a subclass of tensors, a mode, a tracer."""
    is_plain = type(x) in PLAIN and type(codes) in PLAIN
    return not is_plain or torch._C._is_torch_function_mode_enabled() or is_traced(x)


def _fits(x: Tensor, weight: PackedTensor, bias: Tensor | None) -> bool:
    """Whether a product can be computed; quick, because it is asked at every call."""
    codes = weight.codes
    fits = x.is_floating_point() and x.dim() > 0 and x.shape[-1] == weight.columns
    fits = fits and codes.dim() == 2 and x.device == codes.device
    if bias is None or not fits:
        return fits
    is_vector = bias.dim() == 1 and bias.shape[0] == codes.shape[0]
    return is_vector and bias.is_floating_point() and bias.device == x.device


def _explain_misfit(x: Tensor, weight: PackedTensor, bias: Tensor | None) -> None:
    rows, columns = _matrix(weight)
    _want(
        x.is_floating_point() and x.dim() > 0 and x.shape[-1] == columns,
        "packed_linear",
        f"x must be floating-point of shape (…, {columns}), got {x.dtype} {tuple(x.shape)}.",
    )
    _same_device("packed_linear", x, weight.codes)
    if bias is not None:
        _want(
            bias.shape == (rows,) and bias.is_floating_point(),
            "packed_linear",
            f"bias must be floating-point of shape ({rows},), got {bias.dtype} "
            f"{tuple(bias.shape)}.",
        )
        _same_device("packed_linear", x, bias)


def packed_embedding(
    indices: Tensor, weight: PackedTensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The rows of `weight` at `indices`; only those rows are unpacked."""
    _want_packed(weight, "packed_embedding")
    _matrix(weight)
    _want(
        indices.dtype in INDEX_DTYPES,
        "packed_embedding",
        f"indices must be int32 or int64, got {indices.dtype}.",
    )
    _same_device("packed_embedding", indices, weight.codes)
    codes, scales = weight.codes[indices], weight.scales[indices]
    return torch.ops.mase.unpack(
        codes, scales, weight.format, weight.group_size, weight.columns, dtype
    )


def _want(condition: bool, where: str, message: str) -> None:
    if not condition:
        raise ConfigError(f"{where}: {message}")


def _format(name: str, where: str) -> PackedFormat:
    row = packed_format(name)
    if row is None:
        allowed = ", ".join((*PACKED_FORMATS, *INTEGER_FORMATS))
        raise ConfigError(f"{where}: no packed format '{name}'. Allowed: {allowed}.")
    return row


def _check_packed(packed: PackedTensor) -> None:
    where, row = "PackedTensor", _format(packed.format, "PackedTensor")
    check_group_size(packed.group_size, where, is_integer=row.has_real_scales)
    widths = {
        "codes": row.code_bytes(packed.columns),
        "scales": row.row_scale_bytes(packed.columns, packed.group_size),
    }
    for name, width in widths.items():
        part: Tensor = getattr(packed, name)
        _want(part.dtype == torch.uint8, where, f"{name} must be uint8, got {part.dtype}.")
        _want(
            part.dim() > 0 and part.shape[-1] == width,
            where,
            f"{name} must be of shape (…, {width}) for {packed.columns} columns, "
            f"got {tuple(part.shape)}.",
        )
    _want(
        packed.codes.shape[:-1] == packed.scales.shape[:-1],
        where,
        f"codes and scales must have the same rows, got {tuple(packed.codes.shape)} and "
        f"{tuple(packed.scales.shape)}.",
    )
    _same_device(where, packed.codes, packed.scales)


def _matrix(weight: PackedTensor) -> tuple[int, int]:
    _want(
        weight.codes.dim() == 2,
        "packed weight",
        f"must have two dimensions, got shape {weight.shape}.",
    )
    return weight.codes.shape[0], weight.columns


def _same_device(where: str, one: Tensor, other: Tensor) -> None:
    _want(
        one.device == other.device,
        where,
        f"all tensors must be on one device, got {one.device} and {other.device}.",
    )


# -- the operators ---------------------------------------------------------------------------


@functools.cache
def gpu_back_end(format: str) -> ModuleType:
    """Return the Triton kernels, or the reference for other formats or without Triton."""
    if format not in PACKED_FORMATS or importlib.util.find_spec("triton") is None:
        return reference
    from chop.kernels import gpu  # needs Triton

    return gpu


def _gpu(name: str) -> Callable[..., Tensor]:
    def run(*args: Any) -> Tensor:
        format = next(a for a in args if isinstance(a, str))
        return getattr(gpu_back_end(format), name)(*args)

    return run


for _name, _kind in (("unpack", "unpack"), ("packed_linear", "linear")):
    operators.impl(_name, getattr(cpu, _kind), "CPU")
    operators.impl(_name, _gpu(_kind), "CUDA")
    operators.impl(_name, getattr(reference, _kind), "MPS")


def _fake_unpack(
    codes: Tensor, scales: Tensor, format: str, group_size: int, columns: int, dtype: torch.dtype
) -> Tensor:
    return codes.new_empty((*codes.shape[:-1], columns), dtype=dtype)


def _fake_linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Tensor:
    return x.new_empty((*x.shape[:-1], codes.shape[0]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, codes, scales, bias, ctx.format, ctx.group_size = inputs
    ctx.columns, ctx.bias_dtype = x.shape[-1], None if bias is None else bias.dtype
    ctx.save_for_backward(codes, scales)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    codes, scales = ctx.saved_tensors
    to_x = to_bias = None
    if ctx.needs_input_grad[0]:
        weight = torch.ops.mase.unpack(
            codes, scales, ctx.format, ctx.group_size, ctx.columns, gradient.dtype
        )
        to_x = gradient @ weight
    if ctx.needs_input_grad[3]:
        to_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0).to(ctx.bias_dtype)
    return to_x, None, None, to_bias, None, None


torch.library.register_fake("mase::unpack", _fake_unpack, lib=operators)
torch.library.register_fake("mase::packed_linear", _fake_linear, lib=operators)
torch.library.register_autograd(
    "mase::packed_linear", _backward, setup_context=_keep, lib=operators
)
