"""Reader of compressed-tensors folders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.arguments import PATH, takes
from chop.errors import ExportError
from chop.export.checkpoint_names import StoredPart, expert_parts, with_own_names
from chop.export.compressed_schemes import FLOAT_BITS, unpack_words
from chop.export.expert_weights import stacked_parts
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
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers.code_values import float_table
from chop.nn.quantizers.codes import Coded, Powers, Tiles, decode
from chop.nn.quantizers.minifloat import FLOAT_ELEMENTS
from chop.passes.graph.transforms import quantize_transform_pass
from chop.passes.rewrite.split_experts import split_experts
from chop.patterns import check_pattern, match

MX_BLOCK, NV_BLOCK = 32, 16
MX_ELEMENTS = {4: "e2m1", 6: "e2m3", 8: "e4m3"}
WORD_BITS = (4, 8)
"""Bits of integers in words."""
WEIGHT_ALONE = {"data_in_name": "NA", "bias_name": "NA"}
_PARTS = (
    *("weight_packed", "weight_scale", "weight_global_scale"),
    *("weight_shape", "weight_zero_point", "weight_g_idx"),
)


@dataclass(frozen=True)
class _Layer:
    """Decoded layer: values, the config of a format, and its stored scales."""

    values: Tensor
    config: dict[str, Any] | None = None
    scale: Tensor | None = None


@takes(ExportError, path=PATH)
def from_compressed_tensors(path: str | Path) -> MaseGraph:
    """Return the model of a folder as a graph.

    Symmetric int4 and int8, mxfp, nvfp4, and float8 in tiles become quantised layers with the same
    values; other float8 becomes floats. Formats of activations are dropped.
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
    tensors = with_own_names(model, _without_cache_scales(tensors))
    layers = _read_layers(_linear_layers(model), settings, tensors, folder)
    matrices, stacks = stacked_parts(model), {}
    for name, stack in matrices.items():
        parts = _read_layers(_part_layers(model, name, stack), settings, tensors, folder)
        stacks[name] = _Stack(stack, parts)
    read = {n for own in (layers, *(s.layers for s in stacks.values())) for n in own}
    used = {f"{name}.{part}" for name in read for part in (*_PARTS, "weight")}
    used |= {p.name for name, own in matrices.items() if name not in tensors for p in own}
    state = {name: t.float() for name, t in tensors.items() if name not in used}
    state |= {f"{name}.weight": layer.values for name, layer in layers.items()}
    for name, each in stacks.items():
        if name not in tensors:
            state[name] = each.values(tensors, model.get_parameter(name).shape, folder)
            layers |= each.experts(name)
    _load_state(model, state, folder)
    try:
        return _quantised(model, layers, [n for n, each in stacks.items() if each.layers])
    except PROBLEMS as error:
        raise ExportError(f"{folder}: cannot be captured: {last_line(error)}.") from error


def _without_cache_scales(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without the scales of a cache: the graph caches floats."""
    return {n: t for n, t in tensors.items() if not n.endswith((".k_scale", ".v_scale"))}


def _load_state(model: Any, state: Mapping[str, Tensor], folder: Path) -> None:
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


@dataclass(frozen=True)
class _Stack:
    """Matrices of experts that are one parameter of the model; `layers` are those with a format."""

    parts: tuple[StoredPart, ...]
    layers: Mapping[str, _Layer]

    def values(self, tensors: Mapping[str, Tensor], shape: torch.Size, folder: Path) -> Tensor:
        """Return the parameter."""
        stacked = torch.empty(shape)
        for part in self.parts:
            layer = self.layers.get(part.module)
            values = tensors.get(part.name) if layer is None else layer.values
            place = part.of(stacked[part.expert])
            if values is None or values.shape != place.shape:
                has = "is missing" if values is None else f"has shape {list(values.shape)}"
                raise ExportError(f"{folder}: tensor {shown(part.name)} {has}.")
            place.copy_(values)
        return stacked

    def experts(self, name: str) -> dict[str, _Layer]:
        """Return the layer of each expert whose parts have one format, by its path."""
        layers = {}
        for expert in sorted({part.expert for part in self.parts if part.expert is not None}):
            own = [self.layers.get(part.module) for part in expert_parts(self.parts, expert)]
            layer = _joined([each for each in own if each is not None])
            if layer is not None and None not in own:
                layers[f"{name}.{expert}"] = layer
        return layers


def _joined(parts: Sequence[_Layer]) -> _Layer | None:
    """Return layers below each other as one layer; None if their formats differ."""
    if not parts or any(part.config != parts[0].config for part in parts):
        return None
    values, scales = torch.cat([part.values for part in parts]), [part.scale for part in parts]
    if any(scale is None for scale in scales):
        return _Layer(values, parts[0].config)
    own = [scale for scale in scales if scale is not None]
    if own[0].dim():
        return _Layer(values, parts[0].config, torch.cat(own))
    return _Layer(values, parts[0].config, own[0]) if len(set(map(float, own))) == 1 else None


def _linear_layers(model: Any) -> dict[str, nn.Linear]:
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}


def _part_layers(model: Any, name: str, parts: Sequence[StoredPart]) -> dict[str, nn.Linear]:
    """Return an empty layer for each part of a stacked parameter."""
    matrix, layers = model.get_parameter(name)[0], {}
    for part in parts:
        rows, columns = part.of(matrix).shape
        layers[part.module] = nn.Linear(columns, rows, bias=False, device="meta")
    return layers


def _read_layers(
    modules: Mapping[str, nn.Linear],
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    folder: Path,
) -> dict[str, _Layer]:
    layers = {}
    for name, module in modules.items():
        if f"{name}.weight_scale" not in tensors:
            continue
        scheme = _scheme(name, settings, folder)
        own = {p: tensors[f"{name}.{p}"] for p in (*_PARTS, "weight") if f"{name}.{p}" in tensors}
        try:
            layers[name] = _read_layer(scheme, own, module, f"{folder}: layer '{name}'")
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


def _read_layer(
    scheme: Mapping[str, Any], own: Mapping[str, Tensor], module: nn.Linear, where: str
) -> _Layer:
    bits, kind, is_even = (scheme.get(k) for k in ("num_bits", "type", "symmetric"))
    is_int = kind == "int" and is_even is not False and "weight_g_idx" not in own
    allowed = WORD_BITS if is_int else FLOAT_BITS
    if type(bits) is not int or bits not in allowed or not (is_int or kind == "float"):
        raise ExportError(
            f"{where}: num_bits {shown(bits)}, type {shown(kind)}, symmetric {shown(is_even)}. "
            "Allowed: int of 4 or 8 bits, symmetric, in the order of columns; float of 4, 6 or 8 "
            "bits."
        )
    _check_shapes(scheme, own, module, where)
    if is_int:
        return _read_integers(scheme, own, module)
    if scheme.get("group_size") == MX_BLOCK:
        return _read_mx(bits, own, module)
    if bits == 4 and scheme.get("group_size") == NV_BLOCK:
        return _read_nvfp4(own, module)
    if bits != 8:
        raise ExportError(
            f"{where}: float of {bits} bits. Allowed: in groups of {MX_BLOCK}, or with 4 bits and "
            f"a global scale of {NV_BLOCK}."
        )
    if scheme.get("strategy") == "block":
        return _read_tiles(scheme, own, module)
    scale = own["weight_scale"].float().reshape(-1, 1)  # one, or one for each row
    return _Layer(own["weight"].float() * scale)


def _check_shapes(
    scheme: Mapping[str, Any], own: Mapping[str, Tensor], module: nn.Linear, where: str
) -> None:
    """Raise ExportError if tensors of a layer do not fit it, or its scales are not finite."""
    rows, columns = module.out_features, module.in_features
    group, bits = scheme.get("group_size"), scheme["num_bits"]
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "weight": ((rows, columns),),
        "weight_shape": ((2,),),
        "weight_scale": ((), (1,), (rows,), (rows, 1)),
        "weight_global_scale": ((), (1,)),
    }
    if "weight_packed" in own:
        is_word = own["weight_packed"].dtype == torch.int32
        shapes["weight_packed"] = ((rows, -(-columns // (32 // bits))),)
        if not is_word:
            shapes["weight_packed"] = ((rows, -(-columns * bits // 8)),)
    if type(group) is int and group > 0 and columns % group == 0 and group < columns:
        shapes["weight_scale"] = ((rows, columns // group),)
    if scheme.get("strategy") == "block":
        high, wide = _tile(scheme, where)
        shapes["weight_scale"] = ((-(-rows // high), -(-columns // wide)),)
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
    for name in ("weight_scale", "weight_global_scale"):
        scale = own.get(name)
        if scale is None:
            continue
        if scale.dtype == torch.bool or not bool(torch.isfinite(scale.float()).all()):
            raise ExportError(f"{where}: {name} has values that are NaN, infinite or no numbers.")


def _tile(scheme: Mapping[str, Any], where: str) -> tuple[int, int]:
    """Return rows and columns of a tile of scales."""
    tile = scheme.get("block_structure")
    sizes = tile if isinstance(tile, list) else []
    if len(sizes) != 2 or not all(type(n) is int and n > 0 for n in sizes):
        raise ExportError(
            f"{where}: block_structure {shown(tile)}. Allowed: rows and columns, as [128, 128]."
        )
    return sizes[0], sizes[1]


def _read_integers(
    scheme: Mapping[str, Any], own: Mapping[str, Tensor], module: nn.Linear
) -> _Layer:
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


def _read_mx(bits: int, own: Mapping[str, Tensor], module: nn.Linear) -> _Layer:
    element = MX_ELEMENTS[bits]
    scales = Powers(own["weight_scale"].contiguous().reshape(-1), 8, -127, (1, MX_BLOCK), -1)
    config = {"name": "mxfp", "weight_element": element, "weight_block_size": MX_BLOCK}
    return _Layer(_floats(element, own, module, scales), config | WEIGHT_ALONE)


def _read_nvfp4(own: Mapping[str, Tensor], module: nn.Linear) -> _Layer:
    whole = 1 / own["weight_global_scale"].float().reshape(1)
    levels = (whole, own["weight_scale"].contiguous().reshape(-1))
    packed = torch.cat([level.view(torch.uint8) for level in levels])
    values = _floats("e2m1", own, module, Tiles(packed, (1, NV_BLOCK), -1))
    config = {"name": "nvfp4", "weight_tensor_scale": whole.item()}
    return _Layer(values, config | WEIGHT_ALONE)


def _read_tiles(scheme: Mapping[str, Any], own: Mapping[str, Tensor], module: nn.Linear) -> _Layer:
    high, wide = scheme["block_structure"]
    scales = Tiles(own["weight_scale"].float().reshape(-1), (high, wide), -1)
    config = {"name": "fp8_block", "weight_block_size": (high, wide)}
    return _Layer(_floats("e4m3", own, module, scales), config | WEIGHT_ALONE)


def _floats(
    element: str, own: Mapping[str, Tensor], module: nn.Linear, scale: Powers | Tiles
) -> Tensor:
    """Return the values of float codes, packed or a byte each."""
    packed, shape = own.get("weight_packed"), (module.out_features, module.in_features)
    data = own["weight"].view(torch.uint8) if packed is None else packed
    grid = FLOAT_ELEMENTS[element]
    bits = 1 + grid.exponent_width + grid.mantissa_width
    flat = data.contiguous().reshape(-1)
    return decode(Coded(flat, bits, shape, torch.float32, float_table(grid).float(), scale))


def _quantised(model: Any, layers: Mapping[str, _Layer], split: Collection[str]) -> MaseGraph:
    graph = MaseGraph(model)
    split_experts(graph, lambda path, _: path in split)
    called = {str(n.target) for n in graph.nodes if n.op == "call_module"}
    chosen = {n: layer for n, layer in layers.items() if n in called and layer.config is not None}
    for name, layer in chosen.items():
        if layer.scale is not None:
            graph.model.get_submodule(name).register_buffer("weight_scale", layer.scale)
    if chosen:
        rules = {name: {"config": layer.config} for name, layer in chosen.items()}
        quantize_transform_pass(graph, {"by": "name", **rules})
    for name in chosen:
        _hold(graph.model.get_submodule(name))
    return graph


def _hold(layer: nn.Module) -> None:
    """Keep a weight as it is until it trains, if its format would measure other scales on it."""
    assert isinstance(layer, QuantizedModule), "the pass made it"
    if layer.stored_values()["weight"].is_held:
        layer.held = ["weight"]
