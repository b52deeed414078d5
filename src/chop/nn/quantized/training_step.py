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
from chop.nn.quantized.layer_formats import LayerFormats
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
    x = args[0]
    if not (isinstance(x, Tensor) and x.is_cuda and x.requires_grad and torch.is_grad_enabled()):
        return None
    if layer.held or layer.cuts:
        return None
    values = {name: _parameter(layer, name) for name in compute.names_of(layer)}
    operands = {name: value for name, value in values.items() if value is not None}
    if not all(value.requires_grad for value in operands.values()):
        return None
    settings = _settings(layer.quantizers, compute.inputs[0].role, tuple(operands))
    if settings is None:
        return None
    rounded = quantize_together((x, *operands.values()), settings)
    if rounded is None:
        return None
    forget(layer)
    for name, value in zip(operands, rounded[1:], strict=True):
        values[name] = masked(layer, name, value)
    return tuple(values.values()), rounded[0]


def _parameter(layer: Any, name: str) -> Any:
    """Return a parameter of a layer; from its table, where a plain one is found sooner."""
    own = layer._parameters
    return own[name] if name in own else operator.attrgetter(name)(layer)


def _settings(
    quantizers: Mapping[str, Quantizer], role: str, parameters: tuple[str, ...]
) -> tuple[KernelSettings, ...] | None:
    """Return the kernel of the input and of each parameter; None if one has none.

    An exporter may have put an operator in place of a format, in a mapping of its own.
    """
    if isinstance(quantizers, LayerFormats):
        key = role, parameters
        if key not in quantizers.kernels:
            quantizers.kernels[key] = _listed(quantizers, role, parameters)
        return quantizers.kernels[key]
    return _listed(quantizers, role, parameters)


def _listed(
    quantizers: Mapping[str, Quantizer], role: str, parameters: tuple[str, ...]
) -> tuple[KernelSettings, ...] | None:
    roles = (role, *map(parameter_role, parameters))
    settings: list[Any] = [getattr(quantizers[each], "gpu_training", None) for each in roles]
    return None if None in settings else tuple(settings)
