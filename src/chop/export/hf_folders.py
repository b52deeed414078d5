"""Folders of transformers: `config.json` and safetensors."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.auto import modeling_auto

from chop.errors import ExportError
from chop.files import check_stored, read_json, shown, whole_file, write_whole
from chop.hub_config import check_config
from chop.ir.graph import MaseGraph

LANGUAGE_MODELS: tuple[Mapping[str, Any], ...] = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)
"""Classes that can be read, by `model_type`."""
NOT_OF_MODEL = ("quantization_config", "model_type", "auto_map", "architectures")
COUNTS = re.compile(r"(n|num|.*_)?_?(layers?|experts|blocks)", re.ASCII)
"""Config keys that count modules."""
SMALL = 1 << 22
"""Elements of a model that files do not contain: masks, tables of positions."""
PROBLEMS = (
    *(ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, AttributeError),
    *(AssertionError, ImportError, OSError, StrictDataclassError),
)
"""Errors of transformers on invalid settings."""
CONFIG, TENSORS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def model_class(name: Any, where: str) -> Any:
    """Return the class of transformers called `name`."""
    cls = getattr(transformers, name, None) if isinstance(name, str) else None
    if not isinstance(cls, type) or not issubclass(cls, transformers.PreTrainedModel):
        raise ExportError(f"{where}: {shown(name)} is not a model of transformers.")
    return cls


def config_of(mg: MaseGraph, target: str) -> Any:
    """Return the Hugging Face config of a graph."""
    config = getattr(mg.model, "config", None)
    if not isinstance(config, transformers.PreTrainedConfig):
        raise ExportError(
            f"{target}: {type(mg.model).__name__} has no Hugging Face config: only models of "
            "transformers can be written as folders of theirs."
        )
    return config


def empty_model(mg: MaseGraph, config: Any, target: str) -> Any:
    """Return the model that the graph was captured from, on the meta device."""
    cls = model_class(type(mg.model).__name__, target)
    with torch.device("meta"):
        return cls(config)


def tied_names(model: Any) -> dict[str, str]:
    """Return the names of shared parameters, each with the first name of its parameter."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        first.setdefault(id(parameter), name)
    return tied


def differ(model: Any, values: Mapping[str, Tensor]) -> bool:
    """Return True if names that share a parameter in `model` have different values here."""
    return any(
        name in values and first in values and not torch.equal(values[name], values[first])
        for name, first in tied_names(model).items()
    )


def names_to_write(
    model: Any, available: Collection[str], *, is_untied: bool
) -> tuple[dict[str, str], list[str]]:
    """Return the source in the graph of each tensor to write, and notes on unused tensors.

    A shared parameter is written once, by its first name, or if `is_untied` by all its names.
    """
    tied = tied_names(model)
    groups: dict[str, list[str]] = {}
    for name in model.state_dict():
        groups.setdefault(tied.get(name, name), []).append(name)
    sources, notes = {}, []
    for names in groups.values():
        present = [name for name in names if name in available]
        if not present:
            notes.append(f"not written, for the graph does not use it: {names[0]}")
            continue
        for name in names if is_untied else names[:1]:
            sources[name] = name if name in available else present[0]
    return sources, notes


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write the two files; `config.json`, which marks a folder as a model, comes last."""
    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        # the file format has no views
        plain[name] = tensor.clone() if place in storages else tensor
        storages.add(place)
    with whole_file(folder / TENSORS) as draft:
        save_file(plain, draft, metadata={"format": "pt"})
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")


def check_folder(folder: Path) -> None:
    """Raise ExportError if there is no folder of transformers."""
    if folder.is_dir():
        return
    has = "is a file" if folder.exists() else "no such folder"
    raise ExportError(
        f"{folder}: {has}. A model is looked for there as transformers saves it. Allowed: a folder "
        f"with {CONFIG}, and with {TENSORS} or shards and {INDEX}."
    )


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the tensors of a folder."""
    check_folder(folder)
    config = read_json(folder / CONFIG, ExportError)
    if not isinstance(config, dict):
        raise ExportError(f"{folder / CONFIG}: expected a mapping.")
    tensors: dict[str, Tensor] = {}
    for name in shard_names(folder):
        file = folder / name
        if not file.is_file():
            raise ExportError(f"{file}: no such file.")
        check_stored(file, ExportError)
        try:
            with safe_open(file, framework="pt") as opened:
                tensors |= {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise ExportError(f"{file}: damaged safetensors file ({error}).") from error
    return config, tensors


def shard_names(folder: Path) -> list[str]:
    """Return the names of the safetensors files of a folder, in order."""
    if not (folder / INDEX).is_file():
        return [TENSORS]
    index = read_json(folder / INDEX, ExportError)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict) or not all(_is_plain(f) for f in listed.values()):
        raise ExportError(f"{folder / INDEX}: weight_map does not name files of the folder.")
    return sorted(set(listed.values()))


def _is_plain(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")


def described_class(config: Mapping[str, Any], folder: Path) -> tuple[Any, Any]:
    """Return the class and the config of the language model that a `config.json` describes."""
    where = f"{folder / CONFIG}: architectures"
    kind, names = config.get("model_type"), config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    cls = model_class(name, where)
    classes: list[str] = []
    for mapping in LANGUAGE_MODELS:
        entry = mapping.get(str(kind), ())
        classes += [entry] if isinstance(entry, str) else entry
    if cls.__name__ not in classes:
        raise ExportError(
            f"{where}: {shown(name)} is not a language model of type {shown(kind)} that is read."
        )
    check_config(config, str(folder / CONFIG), ExportError)
    settings = {k: v for k, v in config.items() if k not in NOT_OF_MODEL}
    try:
        model_config = transformers.AutoConfig.for_model(str(kind), **settings)
    except PROBLEMS as error:
        raise ExportError(f"{folder / CONFIG}: makes no {name} ({last_line(error)}).") from error
    model_config.dtype = torch.float32
    return cls, model_config


def checked_model(config: Mapping[str, Any], elements: int, tensors: int, folder: Path) -> Any:
    """Return the model that a `config.json` describes, in float32 and without its quantisation.

    Raise ExportError if it has more elements or layers than the weights of the folder.
    """
    cls, model_config = described_class(config, folder)
    for key, value in model_config.to_dict().items():
        if COUNTS.fullmatch(key) and type(value) is int and value > max(tensors, 1):
            raise ExportError(
                f"{folder / CONFIG}: {key} is {value}, and there are {tensors} tensors."
            )
    try:
        with torch.device("meta"):
            empty = cls(model_config)
        needed = sum(t.numel() for t in (*empty.parameters(), *empty.buffers()))
        if needed > 2 * elements + SMALL:
            raise ExportError(
                f"{folder / CONFIG}: a model of {needed} elements, and the weights have {elements}."
            )
        return cls(model_config).float().eval()
    except PROBLEMS as error:
        if isinstance(error, ExportError):
            raise
        raise ExportError(
            f"{folder / CONFIG}: makes no {cls.__name__} ({last_line(error)})."
        ) from error


def last_line(error: BaseException) -> str:
    """Return the last line of a message, where transformers describes the problem."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()[:200]
