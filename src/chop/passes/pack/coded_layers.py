"""Linear layers whose weight is stored as codes, made from float and quantised layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from chop.nn.modules.coded import CodedLinear
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.codes import encode, tiles_of


def coded_linear(layer: QuantizedModule) -> CodedLinear | None:
    """Return a quantised linear layer on its codes; None if its weight has none."""
    stored = layer.stored_values()
    weight = stored.get("weight")
    coded = None if weight is None else encode(weight.values, weight.format, weight.scale)
    if coded is None:
        return None
    bias: Any = stored["bias"].values if "bias" in stored else layer.bias
    compacted = CodedLinear.from_coded(coded, bias, layer.quantizers)
    compacted.config = dict(layer.config)  # type: ignore[assignment]
    return compacted.train(layer.training)


def rounded_to_codes(layer: nn.Linear, form: Quantizer) -> CodedLinear | None:
    """Return a float layer with its weight rounded to `form`; None if a value has no code."""
    weight: Tensor = layer.weight.detach()
    coded = encode(form.quantize(weight), form, tiles_of(form, weight))
    return None if coded is None else CodedLinear.from_coded(coded, layer.bias, {"weight": form})
