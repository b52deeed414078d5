"""Layers with packed weights.

Weights are buffers: they are saved with the model and do not train. The bias stays a parameter, and
gradients pass to the input, so that adapters train.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.ir.reclass import reclassed
from chop.ir.split_formats import ACTIVATIONS, with_formats
from chop.ir.split_rule import FollowingTensor, SplitRule
from chop.kernels import int8_linear
from chop.kernels.ops import (
    ROUNDED,
    PackedTensor,
    multiply,
    multiply_rounded,
    multiply_with_offsets,
    pack,
    packed_embedding,
    unpack,
)
from chop.kernels.packed_experts import QExpertsPacked
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.stored_scale import with_stored_scale

Quantizers = Mapping[str, Quantizer]


def _own_bias(bias: Tensor | None) -> nn.Parameter | None:
    """Return a parameter with the values of `bias`, trainable if that was."""
    if bias is None:
        return None
    return nn.Parameter(bias.detach(), bias.requires_grad or not isinstance(bias, nn.Parameter))


OFFSETS = "offsets"
"""Buffer of the weight's offsets; layers without offsets lack it."""


def _register_weight(layer: nn.Module, weight: PackedTensor) -> None:
    layer.register_buffer("codes", weight.codes)
    layer.register_buffer("scales", weight.scales)
    if weight.offsets is not None:
        layer.register_buffer(OFFSETS, weight.offsets)


class QLinearPacked(nn.Module):
    """A linear layer on packed weights.

    `quantizers` may hold number formats of `data_in` and `data_out`, and `stored` their stored
    scales (`data_in_scale`), which become buffers. A weight with offsets adds a small product: the
    sums of the input's groups times the offsets.

    >>> layer = QLinearPacked.from_linear(nn.Linear(64, 8), "mxint4")
    >>> layer(torch.ones(2, 64)).shape, layer.codes.shape
    (torch.Size([2, 8]), torch.Size([8, 32]))
    """

    mase_leaf: ClassVar[bool] = True
    has_constant_buffers: ClassVar[bool] = True
    codes: Tensor
    scales: Tensor
    bias: Tensor | None
    dtype: torch.dtype = torch.float32
    """Type of the weight before packing, in which adapters compute."""

    def __init__(
        self,
        weight: PackedTensor,
        bias: Tensor | None,
        quantizers: Quantizers | None = None,
        dtype: torch.dtype = torch.float32,
        stored: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.out_features, self.in_features = weight.shape
        self.format, self.group_size = weight.format, weight.group_size
        self.quantizers = dict(quantizers or {})
        _register_weight(self, weight)
        self.register_parameter("bias", _own_bias(bias))
        for name, scale in (stored or {}).items():
            self.register_buffer(name, scale.detach())

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, format: str = "mxint8", group_size: int = 32
    ) -> QLinearPacked:
        """Return `linear` with its weight packed."""
        weight = linear.weight
        return cls(pack(weight, format, group_size), linear.bias, dtype=weight.dtype)

    @property
    def weight(self) -> PackedTensor:
        """Packed weight."""
        layout = (self.format, self.group_size, self.in_features)
        return PackedTensor(self.codes, self.scales, *layout, self._buffers.get(OFFSETS))

    def float_weight(self) -> Tensor:
        """Return the values of the weight."""
        return unpack(self.weight, self.dtype)

    def with_added(self, delta: Tensor) -> QLinearPacked:
        """Return this layer with `delta` added to its weight, rounded to the format.

        A layer with offsets keeps them: the rest of the sum is rounded.
        """
        codes_alone = dataclasses.replace(self.weight, offsets=None)
        total = pack(unpack(codes_alone) + delta, self.format, self.group_size)
        layer = reclassed(self, type(self))
        layer._buffers.update(codes=total.codes, scales=total.scales)
        return layer

    def split_rule(self) -> SplitRule:
        """Return how this layer is split over devices: groups of the weight stay whole."""
        tensors = {name: FollowingTensor("weight", {0: 0, 1: 1}) for name in ("codes", "scales")}
        if OFFSETS in self._buffers:
            tensors[OFFSETS] = FollowingTensor("weight", {0: 0, 1: 1})
        if self.bias is not None:
            tensors["bias"] = FollowingTensor("bias", {0: 0}, is_operand=True)
        units = {"weight": {1: self.group_size}}
        return with_formats(SplitRule("linear", tensors, units=units), self, ACTIVATIONS)

    def forward(self, x: Tensor) -> Tensor:
        # as attributes these would take longer than the rest of this function
        own: dict[str, Any] = self._buffers
        weight = (own["codes"], own["scales"], self._parameters["bias"])
        parts = (*weight, self.format, self.group_size)
        if OFFSETS in own:
            x = self._rounded("data_in", x)
            return self._rounded("data_out", multiply_with_offsets(x, *parts, own[OFFSETS]))
        if not self.quantizers:
            return multiply(x, *parts)
        y = None
        if self.quantizers.get("data_in") == ROUNDED:
            y = multiply_rounded(x, *parts)
        if y is None:
            y = multiply(self._rounded("data_in", x), *parts)
        return self._rounded("data_out", y)

    def _rounded(self, role: str, x: Tensor) -> Tensor:
        if role not in self.quantizers:
            return x
        rounded: Tensor = with_stored_scale(self, role, self.quantizers[role])(x)
        return rounded

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, format={self.format}, group_size={self.group_size}"


class QEmbeddingPacked(nn.Module):
    """An embedding with a packed table; only the rows in use are unpacked."""

    mase_leaf: ClassVar[bool] = True
    has_constant_buffers: ClassVar[bool] = True
    codes: Tensor
    scales: Tensor

    def __init__(self, weight: PackedTensor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = weight.shape
        self.format, self.group_size, self.dtype = weight.format, weight.group_size, dtype
        _register_weight(self, weight)

    @classmethod
    def from_embedding(
        cls, embedding: nn.Embedding, format: str = "mxint8", group_size: int = 32
    ) -> QEmbeddingPacked:
        """Return `embedding` with its table packed."""
        if embedding.max_norm is not None:
            raise ConfigError(
                "QEmbeddingPacked: max_norm rewrites the table at each call; it cannot be packed."
            )
        return cls(pack(embedding.weight, format, group_size), embedding.weight.dtype)

    @property
    def weight(self) -> PackedTensor:
        """Packed table."""
        layout = (self.format, self.group_size, self.embedding_dim)
        return PackedTensor(self.codes, self.scales, *layout, self._buffers.get(OFFSETS))

    def forward(self, indices: Tensor) -> Tensor:
        if OFFSETS in self._buffers:
            return packed_embedding(indices, self.weight, self.dtype)
        codes, scales = self.codes[indices], self.scales[indices]
        layout = (self.format, self.group_size, self.embedding_dim)
        return torch.ops.mase.unpack(codes, scales, *layout, self.dtype)

    def extra_repr(self) -> str:
        sizes = f"{self.num_embeddings}, {self.embedding_dim}"
        return f"{sizes}, format={self.format}, group_size={self.group_size}"


class QLinearInt8(nn.Module):
    """A linear layer on int8 weights with one scale per output (amax / 127).

    With `quantize_input` activations are int8 too, with one scale per row and call, and the product
    is computed in integers.
    """

    mase_leaf: ClassVar[bool] = True
    has_constant_buffers: ClassVar[bool] = True
    codes: Tensor
    scales: Tensor
    units: Tensor
    bias: Tensor | None

    def __init__(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None, *, quantize_input: bool
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = codes.shape
        self.quantize_input = quantize_input
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.register_buffer("units", int8_linear.unit_scales(codes), persistent=False)
        self.register_parameter("bias", _own_bias(bias))

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, quantize_input: bool = False) -> QLinearInt8:
        """Return `linear` with its weight rounded to int8."""
        codes, scales = int8_linear.quantize_rows(linear.weight.detach())
        return cls(codes, scales, linear.bias, quantize_input=quantize_input)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weight before packing, in which adapters compute."""
        return self.scales.dtype

    def float_weight(self) -> Tensor:
        """Return the values of the weight."""
        return self.codes.to(self.dtype) * self.scales[:, None]

    def with_added(self, delta: Tensor) -> QLinearInt8:
        """Return this layer with `delta` added to its weight, rounded to int8."""
        codes, scales = int8_linear.quantize_rows(self.float_weight() + delta.to(self.dtype))
        layer = reclassed(self, type(self))
        layer._buffers.update(codes=codes, scales=scales)
        return layer

    def split_rule(self) -> SplitRule:
        """Return how this layer is split over devices: rounded inputs need whole rows."""
        tensors = {
            "codes": FollowingTensor("weight", {0: 0, 1: 1}),
            "scales": FollowingTensor("weight", {0: 0}),
            "units": FollowingTensor("weight", {0: 0, 1: 1}),
        }
        if self.bias is not None:
            tensors["bias"] = FollowingTensor("bias", {0: 0}, is_operand=True)
        units = {"weight": {1: int8_linear.GROUP}}
        only = {"weight": (0,)} if self.quantize_input else {}
        return SplitRule("linear", tensors, units=units, only=only)

    def forward(self, x: Tensor) -> Tensor:
        multiply = (
            int8_linear.dynamic_linear if self.quantize_input else int8_linear.weight_only_linear
        )
        return multiply(x, self.codes, self.units, self.scales, self.bias)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, quantize_input={self.quantize_input}"


PACKED_LAYERS = (QLinearPacked, QEmbeddingPacked, QExpertsPacked, QLinearInt8)
"""Layers with packed weights."""


def unpacked_weight(layer: nn.Module) -> Tensor:
    """Return the float values of a packed layer's weight."""
    if isinstance(layer, QLinearInt8):
        return layer.float_weight()
    weight = layer.weight
    assert isinstance(weight, PackedTensor), f"{type(layer).__name__} is not a packed layer"
    return unpack(weight)
