"""Reader of compressed-tensors folders: linear layers keep the formats of the folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.arguments import PATH, takes
from chop.errors import ExportError
from chop.export.compressed_tensors import MX_BLOCK, unpack_words
from chop.export.hf_folders import (
    CONFIG,
    PROBLEMS,
    checked_model,
    last_line,
    read_folder,
    tied_names,
)
from chop.files import shown
from chop.ir.graph import MaseGraph
from chop.nn.quantizers import MXFP
from chop.nn.quantizers.code_values import float_table
from chop.nn.quantizers.codes import Coded, Powers, decode
from chop.passes.graph.transforms import quantize_transform_pass
from chop.patterns import check_pattern, match

WORDS: dict[int, dict[torch.dtype, int]] = {
    4: {torch.int32: 8, torch.uint8: 2},
    8: {torch.int32: 4},
}
"""Weights per packed word, by bits of a weight and dtype of the word."""
_PARTS = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")


@dataclass(frozen=True)
class _Layer:
    """Decoded layer: values, the config of a format, and its stored scales."""

    values: Tensor
    config: dict[str, Any] | None = None
    scale: Tensor | None = None


@takes(ExportError, path=PATH)
def from_compressed_tensors(path: str | Path) -> MaseGraph:
    """Return the model of a folder as a graph.

    Symmetric int4 and int8, mxfp4 and mxfp8 become quantised layers with the same values; float8
    becomes floats. Formats of activations are dropped.
    """
    folder = Path(path)
    config, tensors = read_folder(folder)
    settings = config.get("quantization_config")
    if not isinstance(settings, dict) or settings.get("quant_method") != "compressed-tensors":
        raise ExportError(f"{folder / CONFIG}: quantization_config is not of compressed-tensors.")
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise ExportError(f"{folder}: tensor {shown(name)} is complex. Allowed: real numbers.")
    elements = sum(t.numel() * (8 if n.endswith("_packed") else 1) for n, t in tensors.items())
    model = checked_model(config, elements, len(tensors), folder)
    layers = _layers(model, settings, tensors, folder)
    parts = {f"{name}.{part}" for name in layers for part in (*_PARTS, "weight")}
    state = {name: t.float() for name, t in tensors.items() if name not in parts}
    state |= {f"{name}.weight": layer.values for name, layer in layers.items()}
    _load(model, state, folder)
    try:
        return _quantised(model, layers)
    except PROBLEMS as error:
        raise ExportError(f"{folder}: cannot be captured: {last_line(error)}.") from error


def _load(model: Any, state: Mapping[str, Tensor], folder: Path) -> None:
    for name, values in state.items():
        if not bool(torch.isfinite(values).all()):
            raise ExportError(
                f"{folder}: tensor {shown(name)} has values that are NaN or infinite."
            )
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ExportError(f"{folder}: {last_line(error)}") from error
    shared = {name for pair in tied_names(model).items() for name in pair}
    for name in [*(n for n in missing if n not in shared), *unexpected]:
        raise ExportError(f"{folder}: tensor {shown(name)} is missing or has no place.")


def _layers(
    model: Any, settings: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path
) -> dict[str, _Layer]:
    layers = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) or f"{name}.weight_scale" not in tensors:
            continue
        scheme = _scheme(name, settings, folder)
        own = {p: tensors[f"{name}.{p}"] for p in (*_PARTS, "weight") if f"{name}.{p}" in tensors}
        try:
            layers[name] = _layer(scheme, own, module, f"{folder}: layer '{name}'")
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, ExportError):
                raise
            raise ExportError(
                f"{folder}: layer '{name}': its tensors are not those of its scheme ({error})."
            ) from error
    return layers


def _scheme(name: str, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the arguments of the group that a layer belongs to."""
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        if not isinstance(group, dict):
            continue
        targets, weights = group.get("targets"), group.get("weights")
        listed = targets if isinstance(targets, list) else []
        if any(_matches(t, name, folder) for t in listed) and isinstance(weights, dict):
            return weights
    raise ExportError(f"{folder / CONFIG}: no group of config_groups has layer '{name}'.")


def _matches(target: Any, name: str, folder: Path) -> bool:
    if not isinstance(target, str):
        return False
    if target.startswith("re:"):
        pattern = target.removeprefix("re:")
        check_pattern(pattern, f"{folder / CONFIG}: targets", ExportError)
        return match(pattern, name)
    return target in (name, "Linear")


def _layer(
    scheme: Mapping[str, Any], own: Mapping[str, Tensor], module: nn.Linear, where: str
) -> _Layer:
    bits, kind, is_even = (scheme.get(k) for k in ("num_bits", "type", "symmetric"))
    is_int = kind == "int" and is_even is not False and "weight_g_idx" not in own
    if type(bits) is not int or bits not in WORDS or not (is_int or kind == "float"):
        raise ExportError(
            f"{where}: num_bits {shown(bits)}, type {shown(kind)}, symmetric {shown(is_even)}. "
            "Allowed: int of 4 or 8 bits, symmetric, in the order of columns; float of 4 or 8 bits."
        )
    _check_shapes(scheme, own, module, where)
    if is_int:
        return _integers(scheme, own, module)
    if scheme.get("group_size") == MX_BLOCK:
        return _mx(bits, own, module)
    if bits == 4:
        raise ExportError(f"{where}: float of 4 bits. Allowed: in groups of {MX_BLOCK}.")
    scale = own["weight_scale"].float().reshape(-1, 1)  # one, or one for each row
    return _Layer(own["weight"].float() * scale)


def _check_shapes(
    scheme: Mapping[str, Any], own: Mapping[str, Tensor], module: nn.Linear, where: str
) -> None:
    """Raise ExportError if tensors of a layer do not fit it, or its scales are not finite."""
    rows, columns = module.out_features, module.in_features
    group = scheme.get("group_size")
    per_word = WORDS[scheme["num_bits"]]
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "weight": ((rows, columns),),
        "weight_shape": ((2,),),
        "weight_scale": ((), (1,), (rows,), (rows, 1)),
    }
    if "weight_packed" in own:
        words = per_word.get(own["weight_packed"].dtype, 1)
        shapes["weight_packed"] = ((rows, -(-columns // words)),)
    if type(group) is int and group > 0 and columns % group == 0 and group < columns:
        shapes["weight_scale"] = ((rows, columns // group),)
    for name, allowed in shapes.items():
        if name in own and tuple(own[name].shape) not in allowed:
            shape, texts = list(own[name].shape), " or ".join(str(list(s)) for s in allowed)
            raise ExportError(f"{where}: {name} has shape {shape}. Allowed: {texts}.")
    codes = own.get("weight")
    if scheme.get("type") == "int" and codes is not None and codes.dtype != torch.int8:
        raise ExportError(f"{where}: weight is {codes.dtype}. Allowed: torch.int8.")
    zero = own.get("weight_zero_point")
    if zero is not None and bool((zero != 0).any()):
        raise ExportError(f"{where}: weight_zero_point is not 0 in a symmetric scheme.")
    scale = own["weight_scale"]
    if scale.dtype == torch.bool or not bool(torch.isfinite(scale.float()).all()):
        raise ExportError(f"{where}: weight_scale has values that are NaN, infinite or no numbers.")


def _integers(scheme: Mapping[str, Any], own: Mapping[str, Tensor], module: nn.Linear) -> _Layer:
    bits, columns = scheme["num_bits"], module.in_features
    packed = own.get("weight_packed")
    whole = own["weight"] if packed is None else unpack_words(packed, bits, columns)
    scale = own["weight_scale"].float()
    config: dict[str, Any] = {
        "name": "scale_integer",
        "weight_width": bits,
        "weight_scale": "stored",
        "weight_narrow": False,
        "data_in_width": "NA",
        "bias_width": "NA",
    }
    if scheme.get("strategy") == "group":
        size = columns // scale.shape[1]
        config |= {"weight_granularity": "group", "weight_group_size": size}
        spread = scale.repeat_interleave(size, 1)
    elif scale.numel() > 1:
        config |= {"weight_granularity": "channel", "weight_axis": 0}
        spread = scale.reshape(-1, 1)
        scale = scale.reshape(-1)
    else:
        spread = scale = scale.reshape(())
    return _Layer(whole.float() * spread, config, scale)


def _mx(bits: int, own: Mapping[str, Tensor], module: nn.Linear) -> _Layer:
    element = "e2m1" if bits == 4 else "e4m3"
    form = MXFP(element, block_size=MX_BLOCK)  # type: ignore[arg-type]
    shape = (module.out_features, module.in_features)
    data = own["weight_packed"] if bits == 4 else own["weight"].view(torch.uint8)
    scales = Powers(own["weight_scale"].contiguous().reshape(-1), 8, -127, (1, MX_BLOCK), -1)
    table = float_table(form.grid).float()
    flat = data.contiguous().reshape(-1)
    values = decode(Coded(flat, bits, shape, torch.float32, table, scales))
    config = {"name": "mxfp", "weight_element": element, "weight_block_size": MX_BLOCK}
    return _Layer(values, config | {"data_in_element": "NA", "bias_element": "NA"})


def _quantised(model: Any, layers: Mapping[str, _Layer]) -> MaseGraph:
    graph = MaseGraph(model)
    called = {str(n.target) for n in graph.nodes if n.op == "call_module"}
    chosen = {n: layer for n, layer in layers.items() if n in called and layer.config is not None}
    for name, layer in chosen.items():
        if layer.scale is not None:
            graph.model.get_submodule(name).register_buffer("weight_scale", layer.scale)
    if chosen:
        rules = {name: {"config": layer.config} for name, layer in chosen.items()}
        quantize_transform_pass(graph, {"by": "name", **rules})
    return graph
