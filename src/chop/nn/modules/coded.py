"""A linear layer whose weight stays in memory as codes, for any format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chop.ir.reclass import reclassed
from chop.ir.split_formats import ACTIVATIONS, with_formats
from chop.ir.split_rule import FollowingTensor, ParameterCuts, SplitRule
from chop.ir.store.packed_tensors import Record, Stored, record_of, scale_from
from chop.nn.quantizers import Bypass, Quantizer
from chop.nn.quantizers.codes import Coded, Floats, Powers, Tiles, decode

PARTS = ("codes", "table", "scales")
"""Buffers of the layer; `scales` is None if the format has none."""


class CodedLinear(nn.Module):
    """A linear layer that decodes its weight at each call: slow, but as small as a checkpoint."""

    mase_leaf: ClassVar[bool] = True
    has_constant_buffers: ClassVar[bool] = True
    codes: Tensor
    table: Tensor
    scales: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        record: Record,
        parts: Mapping[str, Tensor | None],
        bias: Tensor | None,
        quantizers: Mapping[str, Quantizer],
    ) -> None:
        super().__init__()
        self.record, self.quantizers = dict(record), dict(quantizers)
        self.out_features, self.in_features = record["shape"]
        for name in PARTS:
            self.register_buffer(name, parts.get(name))
        frozen = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_parameter("bias", frozen)

    @classmethod
    def from_coded(
        cls, coded: Coded, bias: Tensor | None, quantizers: Mapping[str, Quantizer]
    ) -> CodedLinear:
        """Return the layer of `coded`."""
        scales = None if coded.scale is None else coded.scale.values
        parts = {"codes": coded.codes, "table": coded.table, "scales": scales}
        return cls(record_of(coded), parts, bias, quantizers)

    @property
    def coded(self) -> Coded:
        """Codes of the weight."""
        record = self.record
        scale: Any = record["scale"]
        if scale is not None and self.scales is not None:
            scale = scale_from(scale, self.scales)
        dtype: torch.dtype = getattr(torch, record["dtype"])
        axis, shape = record["table_axis"], tuple(record["shape"])
        return Coded(self.codes, record["bits"], shape, dtype, self.table, scale, axis)

    @property
    def format(self) -> str:
        """Spelling of the weight's format."""
        return str(self.quantizers["weight"])

    def float_weight(self) -> Tensor:
        """Return the values of the weight."""
        return decode(self.coded)

    @property
    def weight(self) -> Tensor:
        """Values of the weight, decoded at each access."""
        return self.float_weight()

    def stored_values(self) -> dict[str, Stored]:
        """Return the weight with its format, as quantised layers do."""
        scale = self.coded.scale
        floats = scale if isinstance(scale, Floats | Tiles) else None
        return {"weight": Stored(self.float_weight(), self.quantizers["weight"], floats, True)}

    def split_rule(self) -> SplitRule | None:
        """Return how this layer is split over devices: by outputs, at whole bytes and tiles."""
        scale = self.coded.scale
        units = _row_units(self.coded)
        if units is None:
            return None
        tensors = {
            "codes": FollowingTensor("weight", {0: 0}),
            "table": FollowingTensor("weight", {} if self.record["table_axis"] is None else {0: 0}),
        }
        if scale is not None:
            is_one = scale.values.dim() == 0 or (isinstance(scale, Floats) and not _has_rows(scale))
            tensors["scales"] = FollowingTensor("weight", {} if is_one else {0: 0})
        if self.bias is not None:
            tensors["bias"] = FollowingTensor("bias", {0: 0}, is_operand=True)
        rule = SplitRule("linear", tensors, units={"weight": {0: units}}, only={"weight": (0,)})
        return with_formats(rule, self, ACTIVATIONS)

    def for_parts(self, parts: Mapping[str, Tensor], cuts: ParameterCuts) -> CodedLinear:
        """Return the layer of some of the outputs, to be called with the tensors `parts`."""
        part = reclassed(self, type(self))
        part.out_features = self.out_features * parts["codes"].numel() // self.codes.numel()
        part.record = {**self.record, "shape": [part.out_features, self.in_features]}
        return part

    def forward(self, x: Tensor) -> Tensor:
        form = self.quantizers.get("data_in", Bypass())
        y = F.linear(form(x), self.float_weight().to(x.dtype), self.bias)
        return self.quantizers.get("data_out", Bypass())(y)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bits={self.record['bits']}"


def _row_units(coded: Coded) -> int | None:
    """Return the rows of a weight whose codes and scales fill whole bytes; None if none do."""
    columns, scale = coded.shape[1], coded.scale
    rows = _whole_bytes(columns * coded.bits)
    if isinstance(scale, Floats) or scale is None:
        is_split = coded.table_axis in (None, 0) and (scale is None or scale.axis in (None, 0))
        return rows if is_split else None
    down, across = scale.tile
    has_levels = isinstance(scale, Tiles) and scale.has_levels  # starts with the tensor's scale
    if scale.axis != -1 or down == -1 or has_levels:
        return None
    tiles = 1 if across == -1 else -(-columns // across)
    bits = scale.bits if isinstance(scale, Powers) else 8
    return math.lcm(rows, down * _whole_bytes(tiles * bits))


def _whole_bytes(bits: int) -> int:
    """Return the number of items of `bits` bits that fill whole bytes."""
    return 8 // math.gcd(8, bits)


def _has_rows(scale: Floats) -> bool:
    """Return True if the scales have a row per output."""
    return scale.axis is not None or scale.values.dim() == 2
