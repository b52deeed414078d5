"""Linear layers of all experts of a mixture, on packed weights.

Rows of activations are sorted by expert; `ends` has the end of each expert's rows, as in torch's
grouped product, which this replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chop.kernels.ops import PackedTensor, multiply, operators
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.stored_scale import with_stored_scale

operators.define(
    "packed_experts(Tensor x, Tensor ends, Tensor codes, Tensor scales, str format, "
    "int group_size) -> Tensor"
)


def _parts(ends: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield each expert with rows, and its rows."""
    first = 0
    for expert, last in enumerate(ends.tolist()):
        if last > first:
            yield expert, slice(first, last)
        first = last


def _multiply(
    x: Tensor, ends: Tensor, codes: Tensor, scales: Tensor, format: str, group_size: int
) -> Tensor:
    y = x.new_zeros((x.shape[0], codes.shape[1]))
    for expert, rows in _parts(ends):
        y[rows] = multiply(x[rows], codes[expert], scales[expert], None, format, group_size)
    return y


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ends, codes, scales, ctx.format, ctx.group_size = inputs
    ctx.columns = x.shape[-1]
    ctx.save_for_backward(ends, codes, scales)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    ends, codes, scales = ctx.saved_tensors
    to_x = gradient.new_zeros((gradient.shape[0], ctx.columns))
    for expert, rows in _parts(ends):
        weight = torch.ops.mase.unpack(
            codes[expert], scales[expert], ctx.format, ctx.group_size, ctx.columns, gradient.dtype
        )
        to_x[rows] = gradient[rows] @ weight
    return to_x, None, None, None, None, None


for _device in ("CPU", "CUDA", "MPS"):
    operators.impl("packed_experts", _multiply, _device)
torch.library.register_fake(
    "mase::packed_experts",
    lambda x, ends, codes, *rest: x.new_empty((x.shape[0], codes.shape[1])),
    lib=operators,
)
torch.library.register_autograd(
    "mase::packed_experts", _backward, setup_context=_keep, lib=operators
)


class QExpertsPacked(nn.Module):
    """One packed matrix (outputs, inputs) per expert.

    `quantizers` may hold a number format for `data_in`, and `stored` its stored scales.
    """

    mase_leaf: ClassVar[bool] = True
    has_constant_buffers: ClassVar[bool] = True
    codes: Tensor
    scales: Tensor
    quantizers: dict[str, Quantizer] = {}  # noqa: RUF012 -- for layers saved without any

    def __init__(
        self,
        weight: PackedTensor,
        quantizers: Mapping[str, Quantizer] | None = None,
        stored: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.experts, self.out_features, self.in_features = weight.shape
        self.format, self.group_size = weight.format, weight.group_size
        self.quantizers = dict(quantizers or {})
        self.register_buffer("codes", weight.codes)
        self.register_buffer("scales", weight.scales)
        for name, scale in (stored or {}).items():
            self.register_buffer(name, scale.detach())

    @property
    def weight(self) -> PackedTensor:
        """Packed weights."""
        return PackedTensor(self.codes, self.scales, self.format, self.group_size, self.in_features)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        if "data_in" in self.quantizers:
            x = with_stored_scale(self, "data_in", self.quantizers["data_in"])(x)
        y: Tensor = torch.ops.mase.packed_experts(
            x, ends, self.codes, self.scales, self.format, self.group_size
        )
        return y

    def extra_repr(self) -> str:
        sizes = f"{self.experts}, in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, format={self.format}, group_size={self.group_size}"
