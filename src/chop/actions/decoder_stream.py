"""A causal language model in a folder, whose decoder layers are read one at a time.

The model is built without weights. A decoder layer gets its weights from the safetensors when it is
needed. The parts around the layers run in place of the whole model: the layers are replaced by
functions that record their arguments, or that return a given result.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import ExportError
from chop.export.checkpoint_names import STACKED, StoredPart, expert_parts, stored_parts
from chop.export.hf_folders import CONFIG, PROBLEMS, described_class, last_line, shard_names
from chop.export.safetensors_shards import StoredTensor, mapped_tensor, read_header
from chop.files import read_json
from chop.ir.node_arguments import holds_tensor

HIDDEN = "hidden_states"
"""Argument of a decoder layer that carries the activations."""
COMPUTED_IN = torch.float32


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of all decoder layers on one batch.

    `hidden`: activations before the first layer. `sides`: the other tensors that each layer gets,
    by argument; layers share them.
    """

    hidden: Tensor
    sides: Sequence[Mapping[str, Any]]


class DecoderStream:
    """The model of a folder of transformers.

    `model`: its parameters have no values outside of `loaded`. `path`: path of the list of decoder
    layers. `files`: the file of each stored tensor.
    """

    def __init__(self, folder: Path) -> None:
        config = read_json(folder / CONFIG, ExportError)
        if not isinstance(config, dict):
            raise ExportError(f"{folder / CONFIG}: expected a mapping.")
        self.folder = folder
        self.files, self.stored = _stored_tensors(folder)
        cls, settings = described_class(config, folder)
        try:
            with parameters_on_meta():
                self.model: Any = cls(settings).float().eval()
        except PROBLEMS as error:
            raise ExportError(
                f"{folder / CONFIG}: makes no {cls.__name__} ({last_line(error)})."
            ) from error
        self.model.requires_grad_(False)
        self.path = _layers_path(self.model, folder)
        self._tied = _tied_names(self.model)
        self._parts = stored_parts(self.model)
        self._check_names()

    @property
    def layers(self) -> nn.ModuleList:
        """Decoder layers without values."""
        return self.model.get_submodule(self.path)  # type: ignore[no-any-return]

    def layer_path(self, number: int) -> str:
        """Return the path of a decoder layer."""
        return f"{self.path}.{number}"

    def layer_bytes(self, number: int) -> int:
        """Return the memory of a layer's parameters, as they are computed with."""
        return sum(4 * p.numel() for p in self.layers[number].parameters())

    def load_layer(self, number: int) -> nn.Module:
        """Return a copy of a decoder layer with its weights, in float32."""
        layer: nn.Module = copy.deepcopy(self.layers[number])
        for name, _ in list(layer.named_parameters()):
            _set(layer, name, self.read(f"{self.layer_path(number)}.{name}"))
        return layer.eval()

    def layer_inputs(self, batch: Mapping[str, Any]) -> LayerInputs:
        """Return the inputs of every decoder layer on `batch`; no layer runs."""
        first: list[Tensor] = []
        sides: list[Mapping[str, Any]] = []

        def record(hidden: Tensor, **arguments: Any) -> Tensor:
            first.append(hidden)
            sides.append({k: v for k, v in arguments.items() if holds_tensor(v)})
            return hidden

        with self._without_layers(lambda number: record), self._surroundings(head=False):
            self._run(batch)
        return LayerInputs(first[0], sides)

    def outputs(self, batch: Mapping[str, Any], hidden: Tensor) -> Any:
        """Return the model's result if its last decoder layer returns `hidden`."""
        with self._without_layers(lambda number: lambda _, **arguments: hidden):
            return self._run(batch)

    def _run(self, batch: Mapping[str, Any]) -> Any:
        fed = {name: value for name, value in batch.items() if name != "labels"}
        return self.model(**fed, use_cache=False)

    @contextlib.contextmanager
    def loaded_head(self) -> Iterator[None]:
        """Load all parameters outside of the layers inside the context."""
        with self._surroundings(head=True):
            yield

    @contextlib.contextmanager
    def _without_layers(self, replace: Callable[[int], Callable[..., Tensor]]) -> Iterator[None]:
        """Replace the computation of each layer inside the context."""

        def call(function: Callable[..., Tensor], *positional: Any, **named: Any) -> Tensor:
            return function(named.pop(HIDDEN, *positional[:1]), **named)

        with contextlib.ExitStack() as stack:
            for number, layer in enumerate(self.layers):
                layer.forward = functools.partial(call, replace(number))
                stack.callback(delattr, layer, "forward")
            yield

    @contextlib.contextmanager
    def _surroundings(self, *, head: bool) -> Iterator[None]:
        """Load the parameters around the layers inside the context; those of the head if asked.

        A plain table of words is mapped: only the rows that are read take memory.
        """
        embedding, output = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        with contextlib.ExitStack() as stack:
            for path, module in self.model.named_modules():
                if path.startswith(f"{self.path}.") or (module is output and not head):
                    continue
                is_mapped = module is embedding and type(module) is nn.Embedding
                if is_mapped:
                    stack.callback(module.register_forward_hook(_in_float32).remove)
                for name, parameter in list(module.named_parameters(recurse=False)):
                    stored = self._stored_name(f"{path}.{name}")
                    value = stack.enter_context(mapped_tensor(self.files[stored], stored))
                    _set(module, name, value if is_mapped else value.to(COMPUTED_IN, copy=True))
                    stack.callback(_set, module, name, parameter.data)
            yield

    def read(self, name: str) -> Tensor:
        """Return a stored parameter, in float32; the matrices of experts are stacked."""
        parts = self.parts(name)
        if parts[0].expert is None:
            return self._read_part(parts[0])
        stacked = torch.empty(self.model.get_parameter(name).shape, dtype=COMPUTED_IN)
        for part in parts:
            with mapped_tensor(self.files[part.name], part.name) as tensor:
                part.of(stacked[part.expert]).copy_(tensor)
        return stacked

    def _read_part(self, part: StoredPart) -> Tensor:
        with mapped_tensor(self.files[part.name], part.name) as tensor:
            return tensor.to(COMPUTED_IN, copy=True)

    def parts(self, name: str) -> list[StoredPart]:
        """Return the parts that a parameter has in the files.

        The weight of one expert, such as `model.layers.0.mlp.experts.down_proj.3.weight`, is a
        parameter, too.
        """
        if name in self._parts:
            return (
                [StoredPart(self._stored_name(name))]
                if self._is_whole(name)
                else [*self._parts[name]]
            )
        path, _, expert = name.removesuffix(".weight").rpartition(".")
        return expert_parts(self._parts[path], int(expert))

    def _is_whole(self, name: str) -> bool:
        return name in self.files or self._parts[name][0].expert is None

    def _stored_name(self, name: str) -> str:
        """Return the name under which a whole parameter is stored, or the one it is tied to."""
        names = (name, self._parts[name][0].name, self._tied.get(name, name))
        return next((each for each in names if each in self.files), name)

    def expert_paths(self, number: int) -> list[str]:
        """Return the paths within a layer that `split_experts` gives to its experts."""
        prefix = f"{self.layer_path(number)}."
        return [
            f"{name}.{expert}"
            for name, parameter in self.layers[number].named_parameters()
            if not self._is_whole(f"{prefix}{name}")
            for expert in range(parameter.shape[0])
        ]

    def expert_shapes(self, number: int) -> list[torch.Size]:
        """Return the shape of an expert's matrix for each stacked parameter of a layer."""
        return [p.shape[1:] for p in self.layers[number].parameters() if p.dim() == STACKED]

    def _check_names(self) -> None:
        """Raise if a parameter is stored under another name, or in another shape."""
        for name, parameter in self.model.named_parameters():
            for part in self.parts(name):
                stored, shape = self.stored.get(part.name), tuple(parameter.shape)
                if part.expert is not None:
                    shape = (len(range(shape[1])[part.first : part.last]), shape[2])
                if stored is None or stored.shape != shape:
                    has = "is not in the files" if stored is None else f"has shape {stored.shape}"
                    raise ExportError(
                        f"{self.folder}: '{part.name}' {has}, and {type(self.model).__name__} "
                        f"takes it with shape {shape}. Allowed: files whose tensors have the names "
                        "and shapes of the model. Use --model-free, which needs no model."
                    )


def _in_float32(_: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.to(COMPUTED_IN)


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    """Replace a parameter by one with another value."""
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    owner._parameters[leaf] = nn.Parameter(value, requires_grad=False)


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Create the parameters of modules without values inside the context; buffers have values."""
    register = nn.Module.register_parameter

    def without_value(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = without_value  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _stored_tensors(folder: Path) -> tuple[dict[str, Path], dict[str, StoredTensor]]:
    """Return the file and the header of every tensor of a folder."""
    files, tensors = {}, {}
    for name in shard_names(folder):
        for tensor in read_header(folder / name).tensors:
            files[tensor.name], tensors[tensor.name] = folder / name, tensor
    return files, tensors


def _layers_path(model: Any, folder: Path) -> str:
    """Return the path of the longest list of equal layers in a decoder."""
    lists = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and not _inside_list(path)
        if len(module) and len({type(layer) for layer in module}) == 1
    }
    if not lists:
        raise ExportError(
            f"{folder}: {type(model).__name__} has no list of decoder layers. Use --model-free."
        )
    sizes: dict[str, int] = {p: sum(w.numel() for w in m.parameters()) for p, m in lists.items()}
    return max(sizes, key=sizes.__getitem__)


def _inside_list(path: str) -> bool:
    return any(part.isdigit() for part in path.split("."))


def _tied_names(model: Any) -> dict[str, str]:
    """Return the name that each shared parameter is tied to."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return dict(tied) if getattr(model.config, "tie_word_embeddings", False) else {}
