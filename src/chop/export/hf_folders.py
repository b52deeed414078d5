"""Folders as transformers reads and writes them: `config.json` beside safetensors."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
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
"""Classes that are read, by type of model."""
NOT_OF_MODEL = ("quantization_config", "model_type", "auto_map", "architectures")
COUNTS = re.compile(r"(n|num|.*_)?_?(layers?|experts|blocks)", re.ASCII)
"""Keys that say how many modules there are."""
SMALL = 1 << 22
"""Elements of a model that no file holds: masks, tables of positions."""
PROBLEMS = (
    *(ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, AttributeError),
    *(AssertionError, ImportError, OSError, StrictDataclassError),
)
"""What transformers raises on settings that make no model."""
CONFIG, TENSORS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def model_class(name: Any, where: str) -> Any:
    """The class of transformers called `name`."""
    found = getattr(transformers, name, None) if isinstance(name, str) else None
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        raise ExportError(f"{where}: {shown(name)} is not a model of transformers.")
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


def differ(model: Any, values: Mapping[str, Tensor]) -> bool:
    """Whether names that share a parameter in `model` stand for different values here."""
    return any(
        name in values and first in values and not torch.equal(values[name], values[first])
        for name, first in tied_names(model).items()
    )


@dataclass(frozen=True)
class Names:
    """Which tensors of a folder to write, each with the name it has in the graph; and the rest."""

    sources: dict[str, str]
    unused: list[str]


def names_to_write(model: Any, there: Collection[str], *, is_untied: bool) -> Names:
    """The tensors of `model` by those that are `there`.

    A parameter that several names share is written once, by its first name, and if `is_untied` by
    each of them.
    """
    tied = tied_names(model)
    groups: dict[str, list[str]] = {}
    for name in model.state_dict():
        groups.setdefault(tied.get(name, name), []).append(name)
    sources, unused = {}, []
    for names in groups.values():
        known = [name for name in names if name in there]
        if not known:
            unused.append(names[0])
            continue
        for name in names if is_untied else names[:1]:
            sources[name] = name if name in there else known[0]
    return Names(sources, [f"not written, for the graph does not use it: {n}" for n in unused])


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write the two files; `config.json`, by which a folder is a model, comes last."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with whole_file(folder / TENSORS) as draft:
        save_file(_apart(plain), draft, metadata={"format": "pt"})
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of which no two share memory: the file format has no views."""
    seen: set[int] = set()
    made = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        made[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return made


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
    check_stored(file, ExportError)
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise ExportError(f"{file}: damaged safetensors file ({error}).") from error


def described_class(config: Mapping[str, Any], folder: Path) -> tuple[Any, Any]:
    """Return the class and the config that a `config.json` describes: a language model's."""
    where = f"{folder / CONFIG}: architectures"
    kind, names = config.get("model_type"), config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    cls = model_class(name, where)
    if cls.__name__ not in {c for names in LANGUAGE_MODELS for c in _names(names.get(str(kind)))}:
        raise ExportError(
            f"{where}: {shown(name)} is not a language model of type {shown(kind)} that is read."
        )
    check_config(config, str(folder / CONFIG), ExportError)
    said = {k: v for k, v in config.items() if k not in NOT_OF_MODEL}
    try:
        made = transformers.AutoConfig.for_model(str(kind), **said)
    except PROBLEMS as error:
        raise ExportError(f"{folder / CONFIG}: makes no {name} ({last_line(error)}).") from error
    made.dtype = torch.float32
    return cls, made


def _names(found: Any) -> tuple[str, ...]:
    return found if isinstance(found, tuple) else (found,) if isinstance(found, str) else ()


def checked_model(config: Mapping[str, Any], elements: int, tensors: int, folder: Path) -> Any:
    """Return the model that a `config.json` describes, in float32 and without its quantisation.

    Raise ExportError if it has more elements or layers than the weights of the folder.
    """
    cls, made = described_class(config, folder)
    for key, value in made.to_dict().items():
        if COUNTS.fullmatch(key) and type(value) is int and value > max(tensors, 1):
            raise ExportError(
                f"{folder / CONFIG}: {key} is {value}, and there are {tensors} tensors."
            )
    try:
        with torch.device("meta"):
            empty = cls(made)
        needed = sum(t.numel() for t in (*empty.parameters(), *empty.buffers()))
        if needed > 2 * elements + SMALL:
            raise ExportError(
                f"{folder / CONFIG}: a model of {needed} elements, and the weights have {elements}."
            )
        return cls(made).float().eval()
    except PROBLEMS as error:
        if isinstance(error, ExportError):
            raise
        raise ExportError(
            f"{folder / CONFIG}: makes no {cls.__name__} ({last_line(error)})."
        ) from error


def last_line(error: BaseException) -> str:
    """Return the last line of a message: transformers says what is wrong there."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()[:200]
