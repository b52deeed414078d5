"""GGUF files as graphs: the model of the family, its weights in the formats of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from chop.arguments import PATH, takes
from chop.errors import ExportError
from chop.export.gguf_families import FAMILIES, Family
from chop.export.gguf_file import GGUFFile
from chop.ir.graph import MaseGraph
from chop.passes.graph.transforms import quantize_transform_pass

_NA = {"data_in_width": "NA", "bias_width": "NA", "data_out_width": "NA"}
_SCALED = {
    "name": "scale_integer",
    "weight_scale": "stored",
    "weight_granularity": "group",
    "weight_group_size": 32,
    "weight_narrow": False,
    **_NA,
}
FORMATS: dict[str, dict[str, Any]] = {
    "Q8_0": {**_SCALED, "weight_width": 8},
    "Q4_0": {**_SCALED, "weight_width": 4},
    "MXFP4": {
        "name": "mxfp",
        "weight_element": "e2m1",
        "weight_block_size": 32,
        "data_in_element": "NA",
        "bias_element": "NA",
    },
}
"""The format in which a layer keeps the values of a type; other types become floats."""


@takes(ExportError, path=PATH)
def from_gguf(path: str | Path) -> MaseGraph:
    """The model of a GGUF file as a graph.

    Layers of type Q8_0, Q4_0 and MXFP4 are quantised layers with just those values and scales;
    other types are floats.
    """
    file = GGUFFile(path)
    family, config = _config(file)
    _check_shapes(file, family, config)
    model = transformers.AutoModelForCausalLM.from_config(config)
    values, kinds = _values(file, family, config)
    model.load_state_dict(values, strict=False)
    graph = MaseGraph(model.eval(), dummy_in={"input_ids": torch.zeros(2, 8, dtype=torch.long)})
    _quantise(graph, file, family, kinds)
    return graph


def _config(file: GGUFFile) -> tuple[Family, Any]:
    name = file.metadata.get("general.architecture")
    families = {f.architecture: (kind, f) for kind, f in FAMILIES.items()}
    if not isinstance(name, str) or name not in families:
        raise ExportError(
            f"{file.path}: general.architecture is {name!r:.80}. Allowed: {', '.join(families)}."
        )
    kind, family = families[name]
    layers = _need(file, "block_count")
    if layers > len(file.tensors):
        raise ExportError(f"{file.path}: {layers} layers, and {len(file.tensors)} tensors.")
    settings = _gpt2_settings(file) if kind == "gpt2" else _llama_settings(file, kind)
    settings["tie_word_embeddings"] = "output.weight" not in file.tensors
    for key in ("bos_token_id", "eos_token_id"):
        settings[key] = file.metadata.get(f"tokenizer.ggml.{key}")
    try:
        return family, transformers.AutoConfig.for_model(kind, **settings)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise ExportError(f"{file.path}: no config of a {kind} model ({error}).") from error


def _check_shapes(file: GGUFFile, family: Family, config: Any) -> None:
    """Refuse tensors that are not those of the model, before the model takes memory."""
    try:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    except (ValueError, RuntimeError, TypeError, ZeroDivisionError) as error:
        raise ExportError(f"{file.path}: the metadata makes no model ({error}).") from error
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {}
    for name, (_, shape, _) in file.tensors.items():
        source = family.source(name)
        if source is None or source not in shapes:
            raise ExportError(f"{file.path}: tensor '{name:.80}' has no place in the model.")
        is_turned = source.split(".")[-2] in family.transposed and len(shape) == 2
        found[source] = shape[::-1] if is_turned else shape
        if found[source] != shapes[source]:
            given, wanted = list(found[source]), list(shapes[source])
            raise ExportError(f"{file.path}: tensor '{name}' has shape {given}, expected {wanted}.")
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    lacking = shapes.keys() - found.keys() - tied
    missing = sorted(n for n in lacking if not family.is_ignored(n))
    if missing:
        raise ExportError(f"{file.path}: tensor '{family.target(missing[0])}' is missing.")


def _need(file: GGUFFile, key: str, kind: type = int) -> Any:
    name = f"{file.metadata['general.architecture']}.{key}"
    found = file.metadata.get(name)
    if not isinstance(found, kind) or isinstance(found, bool) or not 0 < found < 1 << 31:
        raise ExportError(f"{file.path}: {name} is {found!r:.80}. Allowed: a positive number.")
    return found


def _vocab_size(file: GGUFFile) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table[1]) != 2:
        raise ExportError(f"{file.path}: tensor 'token_embd.weight' is missing or no matrix.")
    return int(table[1][0])


def _llama_settings(file: GGUFFile, kind: str) -> dict[str, Any]:
    heads, width = _need(file, "attention.head_count"), _need(file, "embedding_length")
    prefix = file.metadata["general.architecture"]
    scaling = file.metadata.get(f"{prefix}.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise ExportError(f"{file.path}: rope scaling {scaling!r:.80}. Allowed: none, linear.")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": _theta(file)}
    if scaling == "linear":
        rope = {**rope, "rope_type": "linear", "factor": _need(file, "rope.scaling.factor", float)}
    settings = {
        "vocab_size": _vocab_size(file),
        "hidden_size": width,
        "intermediate_size": _need(file, "feed_forward_length"),
        "num_hidden_layers": _need(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _need(file, "attention.head_count_kv"),
        "max_position_embeddings": _need(file, "context_length"),
        "rms_norm_eps": _need(file, "attention.layer_norm_rms_epsilon", float),
        "head_dim": file.metadata.get(f"{prefix}.attention.key_length", width // heads),
        "rope_parameters": rope,
    }
    if kind == "llama":
        settings["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    return settings


def _theta(file: GGUFFile) -> float:
    key = f"{file.metadata['general.architecture']}.rope.freq_base"
    return _need(file, "rope.freq_base", float) if key in file.metadata else 10000.0


def _gpt2_settings(file: GGUFFile) -> dict[str, Any]:
    return {
        "vocab_size": _vocab_size(file),
        "n_embd": _need(file, "embedding_length"),
        "n_layer": _need(file, "block_count"),
        "n_head": _need(file, "attention.head_count"),
        "n_positions": _need(file, "context_length"),
        "n_inner": _need(file, "feed_forward_length"),
        "layer_norm_epsilon": _need(file, "attention.layer_norm_epsilon", float),
    }


def _values(
    file: GGUFFile, family: Family, config: Any
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors by the model's names, and the types they had."""
    values, kinds = {}, {}
    for name in file:
        source = family.source(name)
        assert source is not None, f"{name} was checked"
        tensor = torch.from_numpy(np.array(file.values(name)))
        made = family.arranged(source, tensor, config, back=True)
        is_turned = source.split(".")[-2] in family.transposed and made.dim() == 2
        values[source] = made.t().contiguous() if is_turned else made
        kinds[source] = file.tensors[name][0].name
    return values, kinds


def _quantise(graph: MaseGraph, file: GGUFFile, family: Family, kinds: dict[str, str]) -> None:
    """Give the layers the formats of the file."""
    layers = {
        name.removesuffix(".weight"): kind
        for name, kind in kinds.items()
        if kind in FORMATS and name.split(".")[-2] not in family.transposed
    }
    called = {str(n.target) for n in graph.nodes if n.op == "call_module"}
    chosen = {name: kind for name, kind in layers.items() if name in called}
    if not chosen:
        return
    rules = {name: {"config": FORMATS[kind]} for name, kind in chosen.items()}
    _with_scales(graph, file, family, chosen)
    quantize_transform_pass(graph, {"by": "name", **rules})


def _with_scales(graph: MaseGraph, file: GGUFFile, family: Family, chosen: dict[str, str]) -> None:
    for name, kind in chosen.items():
        if FORMATS[kind].get("weight_scale") != "stored":
            continue
        place = family.target(f"{name}.weight")
        assert place is not None, f"{name} came from the file"
        row, shape, data = file.tensors[place]
        pairs = np.array(data.reshape(-1, row.nbytes)[:, :2])
        scales = pairs.view(np.float16).astype(np.float32).reshape(shape[0], -1)
        config = graph.model.config
        made = family.arranged(f"{name}.weight", torch.from_numpy(scales), config, back=True)
        graph.model.get_submodule(name).register_buffer("weight_scale", made)
