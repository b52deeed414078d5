"""Operations on packed tensors: check the input, then run the back end of its device.

They are torch operators, visible to tracers, fake tensors and torch.compile. `packed_linear` has
gradients of its input and its bias.
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
from chop.kernels.packed_formats import (
    INTEGER_FORMATS,
    PACKED_FORMATS,
    PackedFormat,
    check_group_size,
    groups_of,
    pack_format,
    packed_format,
)
from chop.nn.quantizers import MXInt
from chop.nn.quantizers.kernels import is_traced

PLAIN = (Tensor, torch.nn.Parameter)
INDEX_DTYPES = (torch.int32, torch.int64)
ROUNDED = MXInt(8, block_size=32)
"""Format to which some kernels round activations."""

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

    `offsets`: a float per group that is added to its values, or None. Asymmetric integers, such as
    Q4_1 of GGUF files, have offsets.

    >>> pack(torch.tensor([1.0, -0.5]), "mxint8", 16).codes.view(torch.int8).tolist()
    [64, -32]
    """

    codes: Tensor
    scales: Tensor
    format: str
    group_size: int
    columns: int
    offsets: Tensor | None = None

    def __post_init__(self) -> None:
        where, row = "PackedTensor", _format(self.format, "PackedTensor")
        check_group_size(self.group_size, where, is_integer=row.has_real_scales)
        scale_width = row.row_scale_bytes(self.columns, self.group_size)
        widths = {"codes": row.code_bytes(self.columns), "scales": scale_width}
        for name, width in widths.items():
            part: Tensor = getattr(self, name)
            _want(part.dtype == torch.uint8, where, f"{name} must be uint8, got {part.dtype}.")
            _want(
                part.dim() > 0 and part.shape[-1] == width,
                where,
                f"{name} must be of shape (…, {width}) for {self.columns} columns, "
                f"got {tuple(part.shape)}.",
            )
        _want(
            self.codes.shape[:-1] == self.scales.shape[:-1],
            where,
            f"codes and scales must have the same rows, got {tuple(self.codes.shape)} and "
            f"{tuple(self.scales.shape)}.",
        )
        _same_device(where, self.codes, self.scales)
        if self.offsets is not None:
            shape = (*self.codes.shape[:-1], groups_of(self.columns, self.group_size))
            _want(
                self.offsets.is_floating_point() and self.offsets.shape == shape,
                where,
                f"offsets must be floating-point of shape {shape}, got {self.offsets.dtype} "
                f"{tuple(self.offsets.shape)}.",
            )
            _same_device(where, self.codes, self.offsets)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return (*self.codes.shape[:-1], self.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and offsets."""
        offsets = 0 if self.offsets is None else self.offsets.nbytes
        return self.codes.nbytes + self.scales.nbytes + offsets


def pack(x: Tensor, format: str = "mxint8", group_size: int = 32) -> PackedTensor:
    """Return `x` rounded to the format, as bytes, in groups along the last dimension.

    `unpack` returns exactly the quantizer's values. `format` may spell the group size: "mxint4/16".
    """
    _want(isinstance(x, Tensor), "pack", f"x must be a tensor, got {type(x).__name__}.")
    if isinstance(format, str) and "/" in format:
        format, group_size = pack_format(format, group_size, "pack")
    row = _format(format, "pack")
    check_group_size(group_size, "pack", is_integer=row.has_real_scales)
    _want(x.is_floating_point(), "pack", f"x must be a floating-point tensor, got {x.dtype}.")
    _want(x.dim() > 0, "pack", "x must have at least one dimension, got a scalar.")
    *lead, columns = x.shape
    rows = x.detach().reshape(math.prod(lead), columns)
    parts = reference.pack_rows(rows, row, group_size)
    codes, scales = (part.view(*lead, part.shape[-1]) for part in parts)
    return PackedTensor(codes, scales, row.name, group_size, columns)


def pack_integers(whole: Tensor, scales: Tensor, group_size: int) -> PackedTensor:
    """Pack a matrix of integers with one scale per row and group.

    The format is int4 if the integers are in -8 … 7, else int8_group.

    >>> pack_integers(torch.tensor([[7.0, -8.0]]), torch.tensor([[-0.5]]), 16).codes.tolist()
    [[135]]
    """
    is_small = bool(((whole >= -8) & (whole <= 7)).all())
    fits = is_small or bool(((whole >= -128) & (whole <= 127)).all())
    _want(fits, "pack_integers", "integers must lie in -128 … 127.")
    row = INTEGER_FORMATS["int4" if is_small else "int8_group"]
    codes = reference.join_codes(row.element.encode(whole.detach()), row)
    as_bytes = reference.scale_bytes(scales.detach())
    return PackedTensor(codes, as_bytes, row.name, group_size, whole.shape[-1])


def _want_packed(value: Any, where: str) -> None:
    message = f"expected a PackedTensor, got {type(value).__name__}. Make one: kernels.pack(x)."
    _want(isinstance(value, PackedTensor), where, message)


def unpack(packed: PackedTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the values of `packed`, exact in float32, rounded to nearest in narrower types.

    With offsets the sum of element times scale and offset is rounded once, in float32.
    """
    _want_packed(packed, "unpack")
    _want(isinstance(dtype, torch.dtype), "unpack", f"dtype must be a torch.dtype, got {dtype!r}.")
    _want(dtype.is_floating_point, "unpack", f"dtype must be floating-point, got {dtype}.")
    layout = (packed.format, packed.group_size, packed.columns)
    if packed.offsets is None:
        return torch.ops.mase.unpack(packed.codes, packed.scales, *layout, dtype)
    values = torch.ops.mase.unpack(packed.codes, packed.scales, *layout, torch.float32)
    return add_offsets(values, packed.offsets, packed.group_size).to(dtype)


def add_offsets(values: Tensor, offsets: Tensor, group_size: int) -> Tensor:
    """Return `values` plus the offset of each group of the last dimension."""
    return values + reference.spread(offsets.to(values.dtype), group_size, values.shape[-1])


def offset_product(x: Tensor, offsets: Tensor, group_size: int) -> Tensor:
    """Return the product of `x` with a weight of offsets alone: group sums times offsets."""
    columns = x.shape[-1]
    groups = groups_of(columns, group_size)
    missing = groups * group_size - columns
    padded = torch.nn.functional.pad(x, (0, missing)) if missing else x
    sums = padded.reshape(*x.shape[:-1], groups, group_size).sum(-1)
    return torch.nn.functional.linear(sums, offsets.to(x.dtype))


def packed_linear(x: Tensor, weight: PackedTensor, bias: Tensor | None = None) -> Tensor:
    """Return `x` times the transposed `weight` plus `bias`, in the dtype of `x`.

    The weight is never unpacked as a whole.
    """
    if not isinstance(weight, PackedTensor) or not _fits(x, weight, bias):
        _want_packed(weight, "packed_linear")
        _explain_misfit(x, weight, bias)
    parts = (weight.codes, weight.scales, bias, weight.format, weight.group_size)
    if weight.offsets is None:
        return multiply(x, *parts)
    return multiply_with_offsets(x, *parts, weight.offsets)


def multiply(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Tensor:
    """Run the operator on checked operands, without the dispatcher if nothing observes it."""
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


def multiply_with_offsets(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int,
    offsets: Tensor,
) -> Tensor:  # fmt: skip
    """Return `multiply` plus `offset_product`; on a CPU without gradients in two native calls."""
    y = multiply(x, codes, scales, bias, format, group_size)
    is_seen = torch.compiler.is_compiling() or y.requires_grad or _is_watched(x, codes)
    if x.is_cpu and not is_seen and cpu.add_offsets(y, x, offsets, group_size):
        return y
    return y + offset_product(x, offsets, group_size)


def multiply_rounded(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, format: str, group_size: int
) -> Tensor | None:
    """Round `x` to `ROUNDED` and multiply in one kernel; None if there is none.

    The result is the same as in two steps, bit for bit.
    """
    needs_gradient = x.requires_grad or (bias is not None and bias.requires_grad)
    is_seen = torch.compiler.is_compiling() or (needs_gradient and torch.is_grad_enabled())
    if not x.is_cpu or is_seen or _is_watched(x, codes):
        return None
    return cpu.rounded_linear(x, codes, scales, bias, format, group_size)


def _is_watched(x: Tensor, codes: Tensor) -> bool:
    """Return True if a tensor subclass, a mode or a tracer must see the operator."""
    is_plain = type(x) in PLAIN and type(codes) in PLAIN
    return not is_plain or torch._C._is_torch_function_mode_enabled() or is_traced(x)


def _fits(x: Tensor, weight: PackedTensor, bias: Tensor | None) -> bool:
    """Return True if a product can be computed; fast, because every call runs it."""
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
    """Return the rows of `weight` at `indices`; only those rows are unpacked."""
    _want_packed(weight, "packed_embedding")
    _matrix(weight)
    _want(
        indices.dtype in INDEX_DTYPES,
        "packed_embedding",
        f"indices must be int32 or int64, got {indices.dtype}.",
    )
    _same_device("packed_embedding", indices, weight.codes)
    offsets = None if weight.offsets is None else weight.offsets[indices]
    parts = (weight.codes[indices], weight.scales[indices])
    return unpack(
        PackedTensor(*parts, weight.format, weight.group_size, weight.columns, offsets), dtype
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


torch.library.register_fake(
    "mase::unpack",
    lambda codes, scales, format, group_size, columns, dtype: codes.new_empty(
        (*codes.shape[:-1], columns), dtype=dtype
    ),
    lib=operators,
)
torch.library.register_fake(
    "mase::packed_linear",
    lambda x, codes, *rest: x.new_empty((*x.shape[:-1], codes.shape[0])),
    lib=operators,
)
torch.library.register_autograd(
    "mase::packed_linear", _backward, setup_context=_keep, lib=operators
)
