"""`mase.load`: a model in any form that the commands take, as a graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from chop.cli.failures import UsageError
from chop.cli.named_objects import NamedObject
from chop.cli.shared_options import ModelOptions
from chop.cli.source import find_source, load_graph
from chop.dataset.tokenized import load_tokenizer as load_tokenizer_at
from chop.ir.graph import MaseGraph


@dataclass(frozen=True, kw_only=True)
class LoadOptions(ModelOptions):
    """Options of `load`: language models get their cache."""

    keeps_cache: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class PackedOptions(LoadOptions):
    """Options of `load` for weights that stay packed."""

    keeps_packed: ClassVar[bool] = True


def load(model: Any, *, packed: bool = True, **options: Any) -> MaseGraph:
    """Return a model as a graph.

    `model`: a hub name, a Hugging Face folder, a checkpoint of a MaseGraph, a GGUF, ONNX or QONNX
    file, a torch.export file (with trust_remote_code=True), a folder of compressed-tensors,
    module:function or file.py:function, a reference model, a torch module or a MaseGraph. Language
    models are captured with their cache, so that `graph.generate` works. With `packed` the packed
    weights of a GGUF file stay packed; without, they become layers that train and can be quantised
    again. `options`: those of every command that takes a model, as `task`, `inputs` and
    `input_shape`.
    """
    config = _options(model, options, packed=packed)
    return load_graph(config, find_source(config))


def load_tokenizer(model: Any) -> Any:
    """Return the tokenizer that comes with a model in any of the forms of `load`."""
    source = find_source(_options(model, {}, packed=True))
    if source.place is None:
        raise UsageError(f"model '{source.name}' comes without a tokenizer.")
    return load_tokenizer_at(source.place)


def _options(model: Any, options: dict[str, Any], *, packed: bool) -> LoadOptions:
    is_name = isinstance(model, str | Path)
    name = str(model) if is_name else NamedObject.of(model)
    return (PackedOptions if packed else LoadOptions)(model=name, **options)
