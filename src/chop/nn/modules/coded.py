"""A linear layer whose weight stays in memory as the codes of its format, whatever that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chop.ir.store.packed_tensors import Record, Stored, record_of
from chop.nn.quantizers import Bypass, Quantizer
from chop.nn.quantizers.codes import Coded, Floats, Powers, decode

PARTS = ("codes", "table", "scales")
"""The buffers of the layer; `scales` is None where the format has none."""


class CodedLinear(nn.Module):
    """A linear layer on codes; each call makes the weight from them and lets go of it.

    Slower than a layer with its weight in float, and as small as a packed checkpoint.
    """

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
        made = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_parameter("bias", made)

    @classmethod
    def from_coded(
        cls, coded: Coded, bias: Tensor | None, quantizers: Mapping[str, Quantizer]
    ) -> CodedLinear:
        """The layer on `coded`."""
        scale = coded.scale
        scales = None if scale is None else scale.values
        parts = {"codes": coded.codes, "table": coded.table, "scales": scales}
        return cls(record_of(coded), parts, bias, quantizers)

    @property
    def coded(self) -> Coded:
        """The weight as codes."""
        told = self.record
        scale: Any = told["scale"]
        if scale is not None and self.scales is not None:
            is_power = scale["kind"] == "power"
            scale = (
                Powers(
                    *(self.scales, scale["bits"], scale["lowest"]),
                    tile=(scale["tile"][0], scale["tile"][1]),
                    axis=scale["axis"],
                )
                if is_power
                else Floats(self.scales, scale["axis"], scale["group_size"])
            )
        dtype: torch.dtype = getattr(torch, told["dtype"])
        axis, shape = told["table_axis"], tuple(told["shape"])
        return Coded(self.codes, told["bits"], shape, dtype, self.table, scale, axis)

    def float_weight(self) -> Tensor:
        """The values of the weight."""
        return decode(self.coded)

    @property
    def weight(self) -> Tensor:
        """The values of the weight, made anew at each access."""
        return self.float_weight()

    def stored_values(self) -> dict[str, Stored]:
        """The weight with its format, as quantised layers give it."""
        scale = self.coded.scale
        kept = scale if isinstance(scale, Floats) else None
        return {"weight": Stored(self.float_weight(), self.quantizers["weight"], kept, True)}

    def forward(self, x: Tensor) -> Tensor:
        """`x` times the transposed weight plus bias, rounded as the formats say."""
        form = self.quantizers.get("data_in", Bypass())
        y = F.linear(form(x), self.float_weight().to(x.dtype), self.bias)
        return self.quantizers.get("data_out", Bypass())(y)

    def extra_repr(self) -> str:
        """Sizes and format, for printing."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bits={self.record['bits']}"
