"""Rounding of all operands of a layer by one launch, in a training step on a GPU."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chop.ir.ops import Compute, parameter_role
from chop.ir.reclass import masked
from chop.nn.quantized.frozen import forget
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.gpu_formats import KernelSettings
from chop.nn.quantizers.together import quantize_together


def rounded_together(
    layer: Any, compute: Compute, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Tensor] | None:
    """Return the parameters and the input in their formats; None if the layer does not train so.

    The input, the weight and the bias must all receive gradients, and share one kernel.
    """
    if torch.compiler.is_compiling() or compute.kernel is None or len(args) != 1 or kwargs:
        return None
    x, names = args[0], compute.names_of(layer)
    is_changed = layer.held or layer.cuts
    if not (isinstance(x, Tensor) and x.is_cuda and torch.is_grad_enabled()) or is_changed:
        return None
    values = {name: operator.attrgetter(name)(layer) for name in names}
    operands = {name: value for name, value in values.items() if value is not None}
    settings = _settings(layer.quantizers, compute.inputs[0].role, operands)
    if settings is None or not x.requires_grad:
        return None
    rounded = quantize_together((x, *operands.values()), settings)
    if rounded is None:
        return None
    forget(layer)
    for name, value in zip(operands, rounded[1:], strict=True):
        values[name] = masked(layer, name, value)
    return tuple(values.values()), rounded[0]


def _settings(
    quantizers: Mapping[str, Quantizer], role: str, parameters: Mapping[str, Tensor]
) -> tuple[KernelSettings, ...] | None:
    """Return the kernel of the input and of each parameter; None if one has none or is frozen.

    An exporter may have put an operator in place of a format.
    """
    settings: list[Any] = [getattr(quantizers[role], "gpu_training", None)]
    for name, value in parameters.items():
        form = quantizers[parameter_role(name)]
        settings.append(getattr(form, "gpu_training", None) if value.requires_grad else None)
    return None if None in settings else tuple(settings)
