"""A linear layer whose weight stays in memory as codes, for any format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chop.ir.store.packed_tensors import Record, Stored, record_of, scale_from
from chop.nn.quantizers import Bypass, Quantizer
from chop.nn.quantizers.codes import Coded, Floats, Tiles, decode

PARTS = ("codes", "table", "scales")
"""Buffers of the layer; `scales` is None if the format has none."""


class CodedLinear(nn.Module):
    """A linear layer that decodes its weight at each call: slow, but as small as a checkpoint."""

    mase_leaf: ClassVar[bool] = True
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

    def forward(self, x: Tensor) -> Tensor:
        form = self.quantizers.get("data_in", Bypass())
        y = F.linear(form(x), self.float_weight().to(x.dtype), self.bias)
        return self.quantizers.get("data_out", Bypass())(y)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bits={self.record['bits']}"
