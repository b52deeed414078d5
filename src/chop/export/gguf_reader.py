"""Reader of GGUF files: a model of the family, with weights in the formats of the file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.nn.modules import module as registration

from chop.arguments import PATH, takes
from chop.errors import ExportError
from chop.export.gguf_families import FAMILIES, GGUFFamily
from chop.export.gguf_file import GGUFFile
from chop.export.gguf_packed import packed_tensor
from chop.files import shown
from chop.ir.graph import MaseGraph
from chop.kernels.layers import QEmbeddingPacked, QLinearPacked
from chop.native import return_freed_memory
from chop.passes.graph.transforms import quantize_transform_pass

_SCALED = {
    "name": "scale_integer",
    "weight_scale": "stored",
    "weight_granularity": "group",
    "weight_group_size": 32,
    "weight_narrow": False,
    **dict.fromkeys(("data_in_width", "bias_width", "data_out_width"), "NA"),
}
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id")
MOST_LAYERS = 512
"""Limit on layers, as in llama.cpp: a layer needs far more memory here than in the file."""
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
"""Config of a layer for each type; other types become floats."""


@takes(ExportError, path=PATH)
def from_gguf(path: str | Path, *, cache: bool = False, packed: bool = False) -> MaseGraph:
    """Return the model of a GGUF file as a graph; with `cache` it can generate text.

    Layers of type Q8_0, Q4_0 and MXFP4 become quantised layers with the same values and scales;
    other types become floats. With `packed` matrices of the types Q8_0, Q4_0, Q4_1 and MXFP4 stay
    packed in memory and on disk: such layers compute on the bytes, and do not train.
    `tokenizer_from_gguf` reads the tokenizer.
    """
    if packed:
        graph = MaseGraph(_packed_model(path), dummy_in=_example(cache), cache=cache)
        return_freed_memory()
        return graph
    file, family, config = _checked(path)
    model = _build(config)
    values, kinds = _values(file, family, config)
    model.load_state_dict(values, strict=False)
    graph = MaseGraph(model.eval(), dummy_in=_example(cache), cache=cache)
    _quantise(graph, file, family, kinds)
    return graph


def _example(cache: bool) -> dict[str, Tensor]:
    """Return example tokens; with a cache also their padding mask."""
    tokens = torch.zeros(2, 8, dtype=torch.long)
    return {"input_ids": tokens, **({"attention_mask": torch.ones_like(tokens)} if cache else {})}


def _checked(path: str | Path) -> tuple[GGUFFile, GGUFFamily, Any]:
    """Return the file, its family and its config; raise if its tensors are not the model's."""
    file = GGUFFile(path)
    family, config = _config(file)
    _check_shapes(file, family, config)
    return file, family, config


def _packed_model(path: str | Path) -> Any:
    """Return the model with packed layers; matrices of block types are never floats."""
    file, family, config = _checked(path)
    with _parameters_on_meta():
        model = _build(config).eval()
    floats = {}
    for name in file:
        source = str(family.source(name))
        place, _, leaf = source.rpartition(".")
        _, shape, _ = file.tensors[name]
        layer = model.get_submodule(place)
        weight = None
        if leaf == "weight" and len(shape) == 2 and type(layer) in (nn.Linear, nn.Embedding):
            weight = packed_tensor(file, name, _arranger(family, source, config))
        if weight is None:
            floats[source] = _float_values(file, name, family, config)
        elif isinstance(layer, nn.Embedding):
            model.set_submodule(place, QEmbeddingPacked(weight))
        else:
            model.set_submodule(place, QLinearPacked(weight, _bias(file, family, source, config)))
        if weight is not None and place == family.table and config.tie_word_embeddings:
            model.set_submodule(family.head, QLinearPacked(weight, None))
    model.load_state_dict(floats, strict=False, assign=True)
    if f"{family.table}.weight" in floats and config.tie_word_embeddings:
        model.get_submodule(family.head).weight = model.get_submodule(family.table).weight
    return model


def _bias(file: GGUFFile, family: GGUFFamily, source: str, config: Any) -> Tensor | None:
    name = str(family.target(f"{source.removesuffix('.weight')}.bias"))
    return _float_values(file, name, family, config) if name in file.tensors else None


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Give parameters of modules that are built inside no memory; buffers are computed."""

    def empty(_: nn.Module, name: str, value: nn.Parameter | None) -> Any:
        if value is None:
            return None
        return nn.Parameter(value.to("meta"), value.requires_grad)

    handle = registration.register_module_parameter_registration_hook(empty)
    try:
        yield
    finally:
        handle.remove()


def _config(file: GGUFFile) -> tuple[GGUFFamily, Any]:
    name = file.metadata.get("general.architecture")
    families = {f.architecture: (kind, f) for kind, f in FAMILIES.items()}
    if not isinstance(name, str) or name not in families:
        raise ExportError(
            f"{file.path}: general.architecture is {shown(name)}. Allowed: {', '.join(families)}."
        )
    kind, family = families[name]
    layers = _need(file, "block_count")
    if layers > min(len(file.tensors), MOST_LAYERS):
        raise ExportError(
            f"{file.path}: {layers} layers, and {len(file.tensors)} tensors. "
            f"Allowed: up to {MOST_LAYERS} layers."
        )
    settings = _gpt2_settings(file) if kind == "gpt2" else _llama_settings(file, kind)
    settings["tie_word_embeddings"] = "output.weight" not in file.tensors
    settings |= _token_ids(file)
    try:
        return family, transformers.AutoConfig.for_model(kind, **settings)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise ExportError(f"{file.path}: no config of a {kind} model ({error}).") from error


def _token_ids(file: GGUFFile) -> dict[str, int | None]:
    """Return the special tokens; raise if one is not in the vocabulary."""
    tokens = {key: file.metadata.get(f"tokenizer.ggml.{key}") for key in SPECIAL_TOKENS}
    size = _vocab_size(file)
    for key, value in tokens.items():
        if value is not None and (type(value) is not int or not 0 <= value < size):
            raise ExportError(
                f"{file.path}: tokenizer.ggml.{key} is {shown(value)}. "
                f"Allowed: a token from 0 to {size - 1}."
            )
    return tokens


def _build(config: Any) -> Any:
    from_config: Any = transformers.AutoModelForCausalLM.from_config
    return from_config(config)


def _check_shapes(file: GGUFFile, family: GGUFFamily, config: Any) -> None:
    """Raise if the tensors are not those of the model, before memory is allocated."""
    try:
        with torch.device("meta"):
            model = _build(config)
    except (ValueError, RuntimeError, TypeError, ZeroDivisionError) as error:
        raise ExportError(f"{file.path}: the metadata makes no model ({error}).") from error
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    sources = set()
    for name, (_, shape, _) in file.tensors.items():
        source = family.source(name)
        if source is None or source not in shapes:
            raise ExportError(f"{file.path}: tensor {shown(name)} has no place in the model.")
        shape = shape[::-1] if family.is_turned(source) and len(shape) == 2 else shape
        if shape != shapes[source]:
            raise ExportError(
                f"{file.path}: tensor {shown(name)} has shape {list(shape)}, "
                f"expected {list(shapes[source])}."
            )
        sources.add(source)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    missing = sorted(n for n in shapes.keys() - sources - tied if not family.is_ignored(n))
    if missing:
        raise ExportError(f"{file.path}: tensor '{family.target(missing[0])}' is missing.")


def _need(file: GGUFFile, key: str, kind: type = int) -> Any:
    name = f"{file.metadata['general.architecture']}.{key}"
    value: Any = file.metadata.get(name)
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < 1 << 31:
        raise ExportError(f"{file.path}: {name} is {shown(value)}. Allowed: a positive number.")
    return value


def _expect(file: GGUFFile, key: str, allowed: int) -> None:
    """Raise if the file has the number `key`, and it is not `allowed`."""
    name = f"{file.metadata['general.architecture']}.{key}"
    if name in file.metadata and _need(file, key) != allowed:
        raise ExportError(f"{file.path}: {name} is {file.metadata[name]}. Allowed: {allowed}.")


def _divide(file: GGUFFile, whole: int, key: str) -> int:
    """Return `whole` divided by the number of heads under `key`; raise if there is a rest."""
    heads: int = _need(file, key)
    if whole % heads:
        name = f"{file.metadata['general.architecture']}.{key}"
        raise ExportError(f"{file.path}: {name} is {heads}. Allowed: a divisor of {whole}.")
    return whole // heads


def _vocab_size(file: GGUFFile) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table[1]) != 2:
        raise ExportError(f"{file.path}: tensor 'token_embd.weight' is missing or no matrix.")
    size = int(table[1][0])
    _expect(file, "vocab_size", size)
    return size


def _llama_settings(file: GGUFFile, kind: str) -> dict[str, Any]:
    settings = {
        "vocab_size": _vocab_size(file),
        "hidden_size": _need(file, "embedding_length"),
        "intermediate_size": _need(file, "feed_forward_length"),
        "num_hidden_layers": _need(file, "block_count"),
        "num_attention_heads": _need(file, "attention.head_count"),
        "num_key_value_heads": _need(file, "attention.head_count_kv"),
        "max_position_embeddings": _need(file, "context_length"),
        "rms_norm_eps": _need(file, "attention.layer_norm_rms_epsilon", float),
        "head_dim": _head_size(file),
        "rope_parameters": _rope(file),
    }
    if kind == "llama":
        settings["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    return settings


def _head_size(file: GGUFFile) -> int:
    """Return the size of a head; raise if heads, keys, values and rotation do not agree."""
    name = f"{file.metadata['general.architecture']}.attention.key_length"
    if name in file.metadata:
        size: int = _need(file, "attention.key_length")
    else:
        size = _divide(file, _need(file, "embedding_length"), "attention.head_count")
    _divide(file, _need(file, "attention.head_count"), "attention.head_count_kv")
    if size % 2:
        raise ExportError(f"{file.path}: heads of size {size}. Allowed: even sizes.")
    for key in ("attention.value_length", "rope.dimension_count"):
        _expect(file, key, size)
    return size


def _rope(file: GGUFFile) -> dict[str, Any]:
    prefix = file.metadata["general.architecture"]
    scaling = file.metadata.get(f"{prefix}.rope.scaling.type", "none")
    if not isinstance(scaling, str) or scaling not in ("none", "linear"):
        raise ExportError(f"{file.path}: rope scaling {shown(scaling)}. Allowed: none, linear.")
    has_base = f"{prefix}.rope.freq_base" in file.metadata
    theta = _need(file, "rope.freq_base", float) if has_base else 10000.0
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if scaling == "linear":
        rope |= {"rope_type": "linear", "factor": _need(file, "rope.scaling.factor", float)}
    return rope


def _gpt2_settings(file: GGUFFile) -> dict[str, Any]:
    width = _need(file, "embedding_length")
    _divide(file, width, "attention.head_count")
    return {
        "vocab_size": _vocab_size(file),
        "n_embd": width,
        "n_layer": _need(file, "block_count"),
        "n_head": _need(file, "attention.head_count"),
        "n_positions": _need(file, "context_length"),
        "n_inner": _need(file, "feed_forward_length"),
        "layer_norm_epsilon": _need(file, "attention.layer_norm_epsilon", float),
    }


def _values(
    file: GGUFFile, family: GGUFFamily, config: Any
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors by their names in the model, and their types."""
    values, kinds = {}, {}
    for name in file:
        source = str(family.source(name))
        values[source] = _float_values(file, name, family, config)
        kinds[source] = file.tensors[name][0].name
    return values, kinds


def _float_values(file: GGUFFile, name: str, family: GGUFFamily, config: Any) -> Tensor:
    """Return the tensor `name` of the file as floats, in the arrangement of the model."""
    source = family.source(name)
    assert source is not None, f"{name} was checked"
    rows = _own_rows(family, source, torch.from_numpy(np.array(file.values(name))), config)
    is_turned = family.is_turned(source) and rows.dim() == 2
    return rows.t().contiguous() if is_turned else rows


def _arranger(family: GGUFFamily, source: str, config: Any) -> Callable[[Tensor], Tensor]:
    return lambda values: _own_rows(family, source, values, config)


def _own_rows(family: GGUFFamily, source: str, values: Tensor, config: Any) -> Tensor:
    """Return the rows of a tensor of the file in the order of the model."""
    return family.arranged(source, values, config, back=True)


def _quantise(graph: MaseGraph, file: GGUFFile, family: GGUFFamily, kinds: dict[str, str]) -> None:
    """Quantise the layers to the formats of the file, with its scales."""
    called = {str(n.target) for n in graph.nodes if n.op == "call_module"}
    rules = {}
    for weight, kind in kinds.items():
        path, place = weight.removesuffix(".weight"), str(family.target(weight))
        row, shape, data = file.tensors[place]
        is_quantised = kind in FORMATS and not family.is_turned(weight) and len(shape) == 2
        if not is_quantised or path not in called:
            continue
        rules[path] = {"config": FORMATS[kind]}
        if FORMATS[kind].get("weight_scale") == "stored":
            pairs = np.array(data.reshape(-1, row.nbytes)[:, :2])
            scales = pairs.view(np.float16).astype(np.float32).reshape(shape[0], -1)
            config = graph.model.config
            buffer = family.arranged(weight, torch.from_numpy(scales), config, back=True)
            graph.model.get_submodule(path).register_buffer("weight_scale", buffer)
    if rules:
        quantize_transform_pass(graph, {"by": "name", **rules})
