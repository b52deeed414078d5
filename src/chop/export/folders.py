"""Folders as transformers reads and writes them: `config.json` beside safetensors."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from chop.errors import ExportError
from chop.files import read_json
from chop.ir.graph import MaseGraph

CONFIG, TENSORS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def model_class(name: Any, where: str) -> Any:
    """The class of transformers called `name`."""
    found = getattr(transformers, name, None) if isinstance(name, str) else None
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        raise ExportError(f"{where}: {name!r:.80} is not a model of transformers.")
    return found


def config_of(mg: MaseGraph, target: str) -> Any:
    """The Hugging Face config of a graph."""
    config = getattr(mg.model, "config", None)
    if not isinstance(config, transformers.PreTrainedConfig):
        raise ExportError(
            f"{target}: {type(mg.model).__name__} has no Hugging Face config: only models of "
            "transformers can be written as folders of theirs."
        )
    return config


def empty_model(mg: MaseGraph, config: Any, target: str) -> Any:
    """The model that the graph was captured from, without memory."""
    cls = model_class(type(mg.model).__name__, target)
    with torch.device("meta"):
        return cls(config)


def tied_names(model: Any) -> dict[str, str]:
    """Names that share a parameter, with the first of them."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        first.setdefault(id(parameter), name)
    return tied


def missing_from(model: Any, there: Mapping[str, Any]) -> dict[str, str | None]:
    """Tensors of `model` that are not `there`, with a name of the same parameter that is."""
    named = list(model.named_parameters(remove_duplicate=False))
    twins = {id(p): name for name, p in named if name in there}
    ids = {name: id(p) for name, p in named}
    return {n: twins.get(ids.get(n, 0)) for n in model.state_dict() if n not in there}


def left_out(name: str, twin: str | None) -> list[str]:
    """What is said of a tensor that the graph has not; nothing where it has it by another name."""
    return [] if twin is not None else [f"not written, for the graph does not use it: {name}"]


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write the two files; `config.json`, by which a folder is a model, comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(plain, draft / TENSORS, metadata={"format": "pt"})
        (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        for name in (TENSORS, CONFIG):
            os.replace(draft / name, folder / name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of a folder."""
    if not folder.is_dir():
        raise ExportError(f"{folder}: no such folder.")
    config = read_json(folder / CONFIG, ExportError)
    if not isinstance(config, dict):
        raise ExportError(f"{folder / CONFIG}: expected a mapping.")
    files = [TENSORS]
    if (folder / INDEX).is_file():
        told = read_json(folder / INDEX, ExportError)
        listed = told.get("weight_map") if isinstance(told, dict) else None
        if not isinstance(listed, dict) or not all(_is_plain(f) for f in listed.values()):
            raise ExportError(f"{folder / INDEX}: weight_map does not name files of the folder.")
        files = sorted(set(listed.values()))
    tensors: dict[str, Tensor] = {}
    for name in files:
        tensors |= _read_tensors(folder / name)
    return config, tensors


def _is_plain(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")


def _read_tensors(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise ExportError(f"{file}: no such file.")
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise ExportError(f"{file}: damaged safetensors file ({error}).") from error


def built_model(config: Mapping[str, Any], folder: Path) -> Any:
    """The model that a `config.json` describes, in float32 and without its quantisation."""
    kind, names = config.get("model_type"), config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    cls = model_class(name, f"{folder / CONFIG}: architectures")
    said = {k: v for k, v in config.items() if k not in ("quantization_config", "model_type")}
    try:
        made = transformers.AutoConfig.for_model(str(kind), **said)
        made.dtype = torch.float32
        return cls(made).float().eval()
    except (ValueError, TypeError, KeyError, ZeroDivisionError, RuntimeError) as error:
        raise ExportError(f"{folder / CONFIG}: makes no {name} ({error}).") from error
