"""Adapters on disk, without the model, in the layout that PEFT writes and reads.

`<path>/adapter_config.json` has the settings, `<path>/adapter_model.safetensors` the adapters under
`base_model.model.<module path>.lora_A.weight` and `….lora_B.weight`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from chop.errors import CheckpointError, PassError
from chop.files import folder_lock, make_folder, parse_json, read_json, shown, whole_file
from chop.ir.graph import MaseGraph
from chop.ir.store.tensors import checksum
from chop.log import get_logger
from chop.nn.modules.lora import LoRALinear
from chop.passes.base import PassResult, graph_pass
from chop.passes.graph.transforms.low_rank_adapters import (
    InsertLoraArgs,
    adapted_layers,
    insert_adapters,
    linear_paths,
    train_only_adapters,
    trained_names,
)
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.lift_layers import lift_products
from chop.patterns import check_pattern, fullmatch

logger = get_logger(__name__)
CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
PREFIX = "base_model.model."
PATTERN = re.compile(r"(?!.*\)[*+?{])[A-Za-z0-9_.$^|()\[\]*+\\-]{1,300}", re.ASCII)
"""Ends of paths as expressions, without repeated groups, which could run forever."""
SAVED_CONFIG, SAVED_TENSORS, REPLACED_CONFIG = "mase_config", "mase_sha256", "mase_replaces"
"""Metadata of the weights: the settings, a checksum of the tensors, and one of the previous
settings, which an interrupted save may leave next to the new weights."""
ADAPTER_NAME = re.compile(r"\.lora_[AB]\.weight$")
PLAIN_LORA: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "use_dora": False,
    "lora_bias": False,
    "layer_replication": None,
    "target_parameters": None,
    "trainable_token_indices": None,
}
"""Settings that change the arithmetic, with the values that adapters of this package have."""


@dataclass(frozen=True)
class AdapterPath:
    """Settings of the adapter passes. `path`: the folder of the adapter."""

    path: Path


@graph_pass("save_lora_adapter_interface_pass", AdapterPath)
def save_lora_adapter_interface_pass(graph: MaseGraph, args: AdapterPath) -> PassResult:
    """Write the graph's adapters, and other parameters that train, to the folder `path`.

    `info` has the folder (`path`), the `adapters` and the other modules (`modules_to_save`).
    """
    layers = adapted_layers(graph)
    if not layers:
        raise PassError(
            "save_lora_adapter: the graph has no adapters. "
            "Run insert_lora_adapter_transform_pass first."
        )
    adapters = {id(p) for layer in layers.values() for p in layer.parameters()}
    saved = {n: p for n, p in graph.model.named_parameters() if p.requires_grad}
    saved = {n: p for n, p in saved.items() if id(p) not in adapters}
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in saved))
    weights = {f"{path}.lora_A.weight": layer.lora_A.weight for path, layer in layers.items()}
    weights |= {f"{path}.lora_B.weight": layer.lora_B.weight for path, layer in layers.items()}
    tensors = {
        f"{PREFIX}{name}": tensor.detach().clone().contiguous()
        for name, tensor in {**weights, **saved}.items()
    }
    text = json.dumps(_config(graph, layers, modules), indent=2) + "\n"
    make_folder(args.path)
    metadata = {"format": "pt", SAVED_CONFIG: text, SAVED_TENSORS: _digest(tensors)}
    with folder_lock(args.path):
        metadata[REPLACED_CONFIG] = _text_digest(args.path / CONFIG_NAME)
        # the weights contain the settings: replacing them is the step from the old to the new
        with whole_file(args.path / WEIGHTS_NAME, to_disk=True, is_held=True) as draft:
            save_file(tensors, draft, metadata)
        with whole_file(args.path / CONFIG_NAME, to_disk=True, is_held=True) as draft:
            draft.write_text(text)
    return graph, {"path": args.path, "adapters": list(layers), "modules_to_save": modules}


def _config(
    graph: MaseGraph, layers: Mapping[str, LoRALinear], modules: list[str]
) -> dict[str, Any]:
    first = next(iter(layers.values()))
    name = getattr(getattr(graph.model, "config", None), "_name_or_path", "") or None
    return {
        **PLAIN_LORA,
        "base_model_name_or_path": name,
        "task_type": None,
        "inference_mode": True,
        "r": first.rank,
        "lora_alpha": first.alpha,
        "lora_dropout": first.lora_dropout.p,
        "rank_pattern": {p: x.rank for p, x in layers.items() if x.rank != first.rank},
        "alpha_pattern": {p: x.alpha for p, x in layers.items() if x.alpha != first.alpha},
        "target_modules": list(layers),
        "modules_to_save": modules or None,
    }


def _text_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return one checksum of all tensors, their names, types and shapes."""
    rows = [
        [name, str(t.dtype), list(t.shape), checksum(t.contiguous())]
        for name, t in sorted(tensors.items())
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@graph_pass("load_lora_adapter_interface_pass", AdapterPath, rewrites=True, preserves=False)
def load_lora_adapter_interface_pass(graph: MaseGraph, args: AdapterPath) -> PassResult:
    """Insert the adapters of the folder `path`, written here or by PEFT, with their weights.

    Existing adapters get the weights. As after insertion, only adapters and the modules saved with
    them train. `info["adapters"]` has the paths. The graph stays unchanged if the files do not fit.
    """
    tensors, metadata = _read_tensors(args.path / WEIGHTS_NAME)
    config = _read_config(args.path / CONFIG_NAME, metadata)
    lift_products(graph)
    paths = {k.rsplit(".lora_", 1)[0] for k in tensors if ADAPTER_NAME.search(k)}
    others = {k: v for k, v in tensors.items() if not ADAPTER_NAME.search(k)}
    if not paths:
        raise CheckpointError(f"{args.path / WEIGHTS_NAME}: there is no adapter in it.")
    parameters = dict(graph.model.named_parameters())
    for name, tensor in others.items():
        if name not in parameters or parameters[name].shape != tensor.shape:
            raise CheckpointError(
                f"{args.path}: the graph has no parameter '{name}' of shape {list(tensor.shape)}."
            )
    plan = {path: _plan(graph, args.path, path, tensors, config) for path in sorted(paths)}
    before = trained_names(graph)
    with torch.no_grad():
        for path, adapter in plan.items():
            insert_adapters(graph, [path], adapter.args)
            layer: Any = graph.model.get_submodule(path)
            layer.lora_A.weight.copy_(adapter.a)
            layer.lora_B.weight.copy_(adapter.b)
        for name, tensor in others.items():
            parameters[name].copy_(tensor)
    train_only_adapters(graph, sorted({name.rpartition(".")[0] for name in others}))
    if before is not None:
        next(iter(adapted_layers(graph).values())).trained_before = before
    refresh(graph)
    return graph, {"adapters": [path for path in linear_paths(graph) if path in plan]}


def _read_config(file: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the adapters; `metadata` is that of the weights."""
    saved = metadata.get(SAVED_CONFIG)
    if saved is not None and _text_digest(file) == metadata.get(REPLACED_CONFIG, ""):
        logger.warning("%s: of the adapter before; the settings saved with the weights hold.", file)
        config = parse_json(saved, f"{file} (saved with the weights)", CheckpointError)
    else:
        config = read_json(file, CheckpointError)
    if not isinstance(config, dict):
        raise CheckpointError(f"{file}: expected a mapping, got {shown(config)}.")
    for key, plain in PLAIN_LORA.items():
        value = config.get(key, plain)
        if value != plain and value:
            raise CheckpointError(f"{file}: {key} is {shown(value)}; only {plain!r} is supported.")
    _check_numbers(config, file)
    if saved is not None and config != parse_json(saved, str(file), CheckpointError):
        raise CheckpointError(f"{file}: not the settings that were saved with the weights.")
    return config


def _check_numbers(config: Mapping[str, Any], file: Path) -> None:
    for key, low, high in (("lora_alpha", -1e9, 1e9), ("lora_dropout", 0.0, 1.0), ("r", 1, 1e9)):
        if key in config:
            _check_number(config[key], low, high, f"{file}: {key}")
    for key in ("alpha_pattern", "rank_pattern"):
        patterns = config.get(key) or {}
        if not isinstance(patterns, dict):
            raise CheckpointError(f"{file}: {key} is {shown(patterns)}; expected a mapping.")
        for pattern, value in patterns.items():
            if not PATTERN.fullmatch(pattern):
                raise CheckpointError(f"{file}: {key}: {shown(pattern)} is not the end of a path.")
            check_pattern(pattern, f"{file}: {key}", CheckpointError)
            _check_number(value, -1e9, 1e9, f"{file}: {key}.{pattern}")


def _check_number(value: Any, low: float, high: float, where: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise CheckpointError(f"{where} is {shown(value)}; expected a number, {low} to {high}.")


def _read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of the file."""
    if not file.is_file():
        pickled = file.with_suffix(".bin").is_file()
        more = " A .bin is a pickle, which can run code, and is not read." if pickled else ""
        raise CheckpointError(f"{file}: no such file.{more}")
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file}: damaged safetensors file ({error}).") from error
    saved = metadata.get(SAVED_TENSORS)
    is_incomplete = (saved is None) != (SAVED_CONFIG not in metadata)
    if is_incomplete or (saved is not None and saved != _digest(tensors)):
        raise CheckpointError(f"{file}: its checksum is not the one it was saved with.")
    plain = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    if len(plain) != len(tensors):
        raise CheckpointError(f"{file}: a tensor is there twice, with and without '{PREFIX}'.")
    return plain, metadata


@dataclass(frozen=True)
class _Adapter:
    """An adapter of a file."""

    args: InsertLoraArgs
    a: Tensor
    b: Tensor


def _plan(
    graph: MaseGraph,
    folder: Path,
    path: str,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
) -> _Adapter:
    """Return the adapter for the layer at `path`, checked against that layer."""
    if path not in linear_paths(graph):
        raise CheckpointError(f"{folder}: the graph has no linear layer '{path}'.")
    a, b = (tensors.get(f"{path}.lora_{part}.weight", torch.zeros(())) for part in "AB")
    layer: Any = graph.model.get_submodule(path)
    is_pair = all(part.dim() == 2 and part.is_floating_point() for part in (a, b))
    sizes = (layer.in_features, layer.out_features)
    if not is_pair or a.shape[0] != b.shape[1] or (a.shape[1], b.shape[0]) != sizes:
        raise CheckpointError(
            f"{folder}: the adapter of '{path}' does not fit a layer that takes "
            f"{layer.in_features} features and gives {layer.out_features}."
        )
    patterns = (config.get("alpha_pattern") or {}).items()
    matching = (v for k, v in patterns if fullmatch(rf"(.*\.)?({k})", path))  # as in PEFT
    alpha = next(matching, config.get("lora_alpha", a.shape[0]))
    args = InsertLoraArgs(a.shape[0], float(alpha), float(config.get("lora_dropout", 0.0)))
    if isinstance(layer, LoRALinear) and (layer.rank, layer.alpha) != (args.rank, args.alpha):
        raise CheckpointError(
            f"{folder}: '{path}' has an adapter of rank {layer.rank} and alpha {layer.alpha:g}, "
            f"the file one of rank {args.rank} and alpha {args.alpha:g}. Fuse the former first."
        )
    return _Adapter(args, a, b)
