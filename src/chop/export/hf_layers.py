"""Layers of a compressed model as plain data and back, for folders of transformers.

To add a kind of layer, extend `spec_of` and add a row to `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import CheckpointError, ConfigError, ExportError
from chop.files import shown
from chop.ir.ops import OPS
from chop.ir.store.packed_tensors import check_parts
from chop.kernels.layers import QEmbeddingPacked, QLinearPacked
from chop.kernels.ops import PackedTensor
from chop.kernels.packed_formats import INTEGER_FORMATS, PACKED_FORMATS, groups_of, packed_format
from chop.nn.modules.coded import PARTS, CodedLinear
from chop.nn.quantized import from_float
from chop.nn.quantized.call_operands import layer_quantizers
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.pack.coded_layers import coded_linear

Spec = dict[str, Any]


def compact(layer: nn.Module) -> nn.Module:
    """Return a quantised linear layer on its codes if its format has at most 8 bits, or itself."""
    if not isinstance(layer, QuantizedModule) or type(layer).float_class is not nn.Linear:
        return layer
    return coded_linear(layer) or layer


def spec_of(layer: nn.Module) -> Spec | None:
    """Return the description of a layer; None for layers of torch."""
    if isinstance(layer, CodedLinear):
        parts = {name: getattr(layer, name) for name in PARTS}
        return {
            "kind": "coded",
            "config": dict(getattr(layer, "config", {})),
            "record": layer.record,
            "parts": {
                n: None if t is None else [str(t.dtype).removeprefix("torch."), [*t.shape]]
                for n, t in parts.items()
            },
            "bias": layer.bias is not None,
        }
    if isinstance(layer, QLinearPacked | QEmbeddingPacked):
        is_linear = isinstance(layer, QLinearPacked)
        if is_linear and layer.quantizers:
            return None
        return {
            "kind": "packed" if is_linear else "packed_embedding",
            "format": layer.format,
            "group_size": layer.group_size,
            "shape": list(layer.weight.shape),
            "dtype": str(layer.dtype).removeprefix("torch."),
            "bias": getattr(layer, "bias", None) is not None,
            **({"offsets": True} if layer.weight.offsets is not None else {}),
        }
    if isinstance(layer, QuantizedModule):
        return {"kind": "quantized", "config": dict(layer.config)}
    return None


def _empty(spec: Any, where: str) -> Tensor | None:
    if spec is None:
        return None
    is_pair = isinstance(spec, list) and len(spec) == 2 and isinstance(spec[1], list)
    if not is_pair or not all(type(n) is int and n >= 0 for n in spec[1]):
        raise ExportError(f"{where}: expected a dtype and a shape, got {shown(spec)}.")
    return torch.empty(spec[1], dtype=_dtype(spec[0], where))


def _dtype(name: Any, where: str) -> torch.dtype:
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ExportError(f"{where}: {shown(name)} is not a dtype of torch, such as 'float32'.")
    return dtype


def _check_sizes(layer: nn.Module, old: nn.Module, where: str) -> None:
    """Raise ExportError if a layer is larger than the one it replaces."""
    for name in ("out_features", "in_features", "num_embeddings", "embedding_dim"):
        size, most = getattr(layer, name, None), getattr(old, name, None)
        if size is not None and most is not None and not 0 < size <= most:
            raise ExportError(f"{where}: {name} is {size}. Allowed: 1 to {most}, as in the config.")


def _coded_layer(spec: Spec, old: nn.Module, where: str) -> nn.Module:
    parts = {name: _empty(spec["parts"].get(name), f"{where}.parts.{name}") for name in PARTS}
    check_parts(spec["record"], parts, where)
    compute = OPS["linear"].compute
    assert compute is not None, "linear has a kernel"
    bias = torch.empty(spec["record"]["shape"][0]) if spec["bias"] else None
    formats = layer_quantizers(compute, spec["config"], f"{where}.config")
    layer = CodedLinear(spec["record"], parts, bias, formats)
    layer.config = dict(spec["config"])  # type: ignore[assignment]
    return layer


def _packed_weight(spec: Spec) -> PackedTensor:
    rows, columns = spec["shape"]
    form, size = packed_format(spec["format"]), spec["group_size"]
    if form is None:
        allowed = ", ".join((*PACKED_FORMATS, *INTEGER_FORMATS))
        raise ConfigError(f"no packed format {shown(spec['format'])}. Allowed: {allowed}.")
    codes = torch.empty(rows, form.code_bytes(columns), dtype=torch.uint8)
    scales = torch.empty(rows, form.row_scale_bytes(columns, size), dtype=torch.uint8)
    offsets = torch.empty(rows, groups_of(columns, size)) if spec.get("offsets") is True else None
    return PackedTensor(codes, scales, spec["format"], size, columns, offsets)


def _packed_layer(spec: Spec, old: nn.Module, where: str) -> nn.Module:
    bias = torch.empty(spec["shape"][0]) if spec["bias"] else None
    return QLinearPacked(_packed_weight(spec), bias, dtype=_dtype(spec["dtype"], where))


def _resized_layer(spec: Spec, old: nn.Module, where: str) -> nn.Module:
    rows, columns = spec["shape"]
    if type(old) is nn.Linear:
        return nn.Linear(columns, rows, bias=old.bias is not None)
    raise ExportError(f"{where}: {type(old).__name__} cannot have another size. Allowed: Linear.")


KINDS: dict[str, Callable[[Spec, nn.Module, str], nn.Module]] = {
    "coded": _coded_layer,
    "packed": _packed_layer,
    "packed_embedding": lambda spec, _, where: QEmbeddingPacked(
        _packed_weight(spec), _dtype(spec["dtype"], where)
    ),
    "quantized": lambda spec, old, where: from_float(old, spec["config"], where=f"{where}.config"),
    "resized": _resized_layer,
}


def make_layer(spec: Any, old: nn.Module, where: str) -> nn.Module:
    """Return the layer that `spec` describes, to replace `old`; its tensors are not loaded yet."""
    kind = spec.get("kind") if isinstance(spec, dict) else None
    if kind not in KINDS:
        raise ExportError(f"{where}: kind {shown(kind)}. Allowed: {', '.join(KINDS)}.")
    try:
        layer = KINDS[kind](spec, old, where)
        _check_sizes(layer, old, where)
        return layer
    except (CheckpointError, ConfigError) as error:
        raise ExportError(f"{where}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, ExportError):
            raise
        raise ExportError(f"{where}: not the description of a layer ({error!r:.200}).") from error


def compressed(layer: nn.Linear, weight: Tensor, config: Mapping[str, Any]) -> nn.Module:
    """Return `layer` with `weight` in the format of `config`, on its codes if it has any."""
    full = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    full.weight = nn.Parameter(weight, requires_grad=False)
    quantised = compact(from_float(full, config, where="quantization_config"))
    if layer.bias is not None:
        quantised.register_parameter("bias", layer.bias)
    return quantised
