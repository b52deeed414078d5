"""MaseGraphs on disk: tensors as safetensors, everything else as JSON.

Loading never executes code: the JSON names classes and functions, and only those of torch, of this
package, of transformers' output classes, or handed in by the caller are looked up.
"""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import fx, nn
from torch.nn.utils import parametrize

from chop.errors import CheckpointError
from chop.ir.codec import Decoder, decode_graph, encode, encode_node, function_name
from chop.ir.guards import Guards, guards_of
from chop.ir.outputs import OutputTemplate, template_of
from chop.ir.traced import TracedModule
from chop.ir.twins import recipe_of

FORMAT = "mase-graph"
VERSION = 1


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a checkpoint holds."""

    model: TracedModule
    dummy_in: dict[str, torch.Tensor] | None


# -- saving ----------------------------------------------------------------------------------


def save_graph(
    model: TracedModule, path: str | Path, dummy_in: Mapping[str, Any] | None = None
) -> None:
    """Write `<path>.json` and `<path>.safetensors`; both are complete or neither is there."""
    tensors, aliases = _tensors(model)
    inputs = {  # a copy: the file format has no views
        f"dummy_in/{k}": v.detach().clone().contiguous()
        for k, v in (dummy_in or {}).items()
        if torch.is_tensor(v)
    }
    identity = uuid.uuid4().hex
    description = {
        "format": FORMAT,
        "version": VERSION,
        "id": identity,
        "class_name": type(model).__name__,
        "nodes": [encode_node(n) for n in model.graph.nodes],
        "modules": _encode_leaves(model),
        "attributes": _encode_attributes(model),
        "aliases": aliases,
        "training": _training_flags(model),
        "output": _encode_template(template_of(model)),
        "config": _encode_config(getattr(model, "config", None)),
        "guards": _encode_guards(guards_of(model)),
    }
    text = json.dumps(description, indent=1)
    stored = {**tensors, **inputs}
    _write_pair(Path(path), text, stored, identity)


def save_state_dict(model: nn.Module, path: str | Path) -> None:
    """Write the tensors alone, as `<path>.safetensors`."""
    target = _with_suffix(Path(path), ".safetensors")
    target.parent.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.detach().clone().contiguous() for k, v in model.state_dict().items()}
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    save_file(tensors, temporary)
    os.replace(temporary, target)


def _write_pair(path: Path, text: str, tensors: dict[str, Any], identity: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [_with_suffix(path, ".safetensors"), _with_suffix(path, ".json")]
    temporary = [n.with_name(f".{n.name}.{os.getpid()}") for n in names]
    try:
        save_file(tensors, temporary[0], metadata={"format": FORMAT, "id": identity})
        temporary[1].write_text(text)
        for source, target in zip(temporary, names, strict=True):
            os.replace(source, target)
    finally:
        for leftover in temporary:
            leftover.unlink(missing_ok=True)


def _with_suffix(path: Path, suffix: str) -> Path:
    """`path` + suffix; a dot in the name is part of the name."""
    known = path.name.removesuffix(".json").removesuffix(".safetensors")
    return path.with_name(known + suffix)


def _tensors(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Every parameter and buffer once, and which names share one."""
    model.state_dict()  # pruned layers write their zeros before they are saved
    first: dict[int, str] = {}
    stored, aliases = {}, {}
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in named:
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            stored[name] = tensor.detach().clone().contiguous()
    return stored, aliases


def _encode_leaves(model: fx.GraphModule) -> dict[str, Any]:
    targets = {str(n.target) for n in model.graph.nodes if n.op == "call_module"}
    return {t: _encode_module(model.get_submodule(t), t) for t in sorted(targets)}


def _encode_module(module: nn.Module, where: str) -> dict[str, Any]:
    if module._forward_hooks or module._forward_pre_hooks:
        raise CheckpointError(
            f"module '{where}': forward hooks cannot be saved. Remove them first."
        )
    parametrized = parametrize.is_parametrized(module)
    cls = type(module).__bases__[0] if parametrized else type(module)
    state = vars(module) if parametrized else module.__getstate__()
    own = {id(t): n for n, t in [*module._parameters.items(), *module._buffers.items()]}
    internal = vars(nn.Module())
    attributes = {
        k: encode(v, f"module '{where}', attribute '{k}'", own)
        for k, v in dict(state).items()
        if k not in internal
    }
    return {
        "class": _encode_class(cls),
        "parametrized": list(module.parametrizations) if parametrized else [],  # type: ignore[arg-type]
        "attributes": attributes,
        "parameters": {k: _grad(p) for k, p in module._parameters.items()},
        "buffers": {
            k: None if b is None else k not in module._non_persistent_buffers_set
            for k, b in module._buffers.items()
        },
        "children": {k: _encode_module(m, f"{where}.{k}") for k, m in module.named_children()},
    }


def _encode_class(cls: type) -> Any:
    recipe = recipe_of(cls)
    if recipe is None:
        return f"{cls.__module__}.{cls.__qualname__}"
    maker, parts = recipe
    return {"made_by": function_name(maker), "of": [_encode_class(part) for part in parts]}


def _grad(parameter: nn.Parameter | None) -> bool | None:
    return None if parameter is None else parameter.requires_grad


def _encode_attributes(model: fx.GraphModule) -> dict[str, Any]:
    """The parameters and buffers that `get_attr` nodes read."""
    targets = {str(n.target) for n in model.graph.nodes if n.op == "get_attr"}
    found = {}
    for target in sorted(targets):
        owner_name, _, name = target.rpartition(".")
        owner = model.get_submodule(owner_name)
        if name in owner._parameters:
            found[target] = {"requires_grad": _grad(owner._parameters[name])}
        elif name in owner._buffers:
            found[target] = {"persistent": name not in owner._non_persistent_buffers_set}
        else:
            raise CheckpointError(f"attribute '{target}' is neither a parameter nor a buffer.")
    return found


def _training_flags(model: fx.GraphModule) -> dict[str, bool]:
    """Mode of every module that a node uses, or that holds or is part of such a module.

    A pass of the user's own may erase nodes and leave their modules: those are not loaded again.
    """
    used = {str(n.target) for n in model.graph.nodes if n.op in ("call_module", "get_attr")}
    paths = {"", *used}
    for target in used:
        parts = target.split(".")
        paths.update(".".join(parts[:i]) for i in range(1, len(parts)))
    inside = tuple(f"{target}." for target in used)
    return {
        name: module.training
        for name, module in model.named_modules()
        if name in paths or name.startswith(inside)
    }


def _encode_template(template: OutputTemplate | None) -> Any:
    if template is None:
        return None
    kind = template.kind
    return {
        "class": None if kind is None else f"{kind.__module__}.{kind.__qualname__}",
        "parts": [[key, _encode_template(part)] for key, part in template.parts.items()],
    }


def _encode_guards(guards: Guards | None) -> Any:
    return None if guards is None else guards.to_data()


def _encode_config(config: Any) -> Any:
    if config is None or not hasattr(config, "to_json_string"):
        return None
    return {"model_type": config.model_type, "fields": json.loads(config.to_json_string(False))}


# -- loading ---------------------------------------------------------------------------------


def load_graph(path: str | Path, classes: Iterable[Any] = ()) -> Loaded:
    """The graph that `save_graph` wrote; a damaged or foreign file is a CheckpointError."""
    file = _with_suffix(Path(path), ".json")
    description = _read_description(file)
    tensors = _read_tensors(_with_suffix(Path(path), ".safetensors"), description["id"])
    try:
        model = decode_model(description, tensors, Decoder(classes))
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{file}: damaged checkpoint ({error!r}).") from error
    inputs = {
        k.removeprefix("dummy_in/"): v for k, v in tensors.items() if k.startswith("dummy_in/")
    }
    return Loaded(model, inputs or None)


def _read_description(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(f"{file}: no such checkpoint.")
    try:
        description = json.loads(file.read_text())
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{file}: not a readable JSON file ({error}).") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise CheckpointError(f"{file}: not a MaseGraph checkpoint.")
    if description.get("version") != VERSION:
        raise CheckpointError(
            f"{file}: version {description.get('version')}; this release reads {VERSION}."
        )
    return description


def _read_tensors(file: Path, identity: str) -> dict[str, torch.Tensor]:
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file; a checkpoint is a .json and a .safetensors.")
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: damaged safetensors file ({error}).") from error
    if metadata.get("id") != identity:
        raise CheckpointError(f"{file}: belongs to another checkpoint than its .json file.")
    return tensors


def decode_model(
    description: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], decode: Decoder
) -> TracedModule:
    """The module a description and its tensors stand for."""
    find = _TensorFinder(tensors, description["aliases"])
    attributes: dict[str, Any] = {
        name: _decode_module(record, name, find, decode)
        for name, record in description["modules"].items()
    }
    for name, record in description["attributes"].items():
        attributes[name] = find.attribute(name, record)
    graph = decode_graph(description["nodes"], decode)
    model = TracedModule(attributes, graph, class_name=description["class_name"])
    _set_flags(model, description)
    template = _decode_template(description["output"], decode)
    if template is not None:
        template.attach(model)
    if description.get("guards") is not None:
        Guards.from_data(description["guards"]).attach(model)
    if description["config"] is not None:
        model.config = _decode_config(description["config"])
    return model


def _set_flags(model: nn.Module, description: Mapping[str, Any]) -> None:
    for name, training in description["training"].items():
        model.get_submodule(name).training = training
    for name, record in description["attributes"].items():
        owner_name, _, leaf = name.rpartition(".")
        if record.get("persistent") is False:
            model.get_submodule(owner_name)._non_persistent_buffers_set.add(leaf)


class _TensorFinder:
    """Finds tensors by name; names that shared one tensor share it again."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> None:
        self.tensors = tensors
        self.aliases = aliases
        self.made: dict[str, torch.Tensor] = {}

    def _tensor(self, name: str) -> torch.Tensor:
        if name not in self.tensors:
            raise CheckpointError(f"tensor '{name}' is missing.")
        return self.tensors[name]

    def parameter(self, name: str, requires_grad: bool) -> nn.Parameter:
        """The parameter `name`."""
        first = self.aliases.get(name, name)
        if first not in self.made:
            self.made[first] = nn.Parameter(self._tensor(first), requires_grad=requires_grad)
        return self.made[first]  # type: ignore[return-value]

    def buffer(self, name: str) -> torch.Tensor:
        """The buffer `name`."""
        first = self.aliases.get(name, name)
        return self.made.setdefault(first, self._tensor(first))

    def attribute(self, name: str, record: Mapping[str, Any]) -> torch.Tensor:
        """What a `get_attr` node reads."""
        if "requires_grad" in record:
            return self.parameter(name, record["requires_grad"])
        return self.buffer(name)


def _decode_module(
    record: Mapping[str, Any], where: str, find: _TensorFinder, decode: Decoder
) -> nn.Module:
    cls = _decode_class(record["class"], decode)
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    for name, requires_grad in record["parameters"].items():
        full = f"{where}.{name}"
        parameter = None if requires_grad is None else find.parameter(full, requires_grad)
        module.register_parameter(name, parameter)
    for name, persistent in record["buffers"].items():
        buffer = None if persistent is None else find.buffer(f"{where}.{name}")
        module.register_buffer(name, buffer, persistent=persistent is not False)
    for name, child in record["children"].items():
        module.add_module(name, _decode_module(child, f"{where}.{name}", find, decode))
    own = {**module._parameters, **module._buffers}
    attributes = {k: decode(v, own) for k, v in record["attributes"].items()}
    module.__setstate__({**vars(module), **attributes})
    if record["parametrized"]:  # torch offers no public way to put these properties back
        parametrize._inject_new_class(module)
        for name in record["parametrized"]:
            parametrize._inject_property(module, name)
    return module


def _decode_class(record: Any, decode: Decoder) -> Any:
    if isinstance(record, str):
        return decode.cls(record, nn.Module)
    maker = decode.function(record["made_by"])
    return maker(*(_decode_class(part, decode) for part in record["of"]))


def _decode_template(record: Any, decode: Decoder) -> OutputTemplate | None:
    if record is None:
        return None
    kind = None if record["class"] is None else decode.cls(record["class"], object)
    parts = {key: _decode_template(part, decode) for key, part in record["parts"]}
    return OutputTemplate(kind, {k: p for k, p in parts.items() if p is not None})


def _decode_config(record: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    fields = {k: _numbers(v) for k, v in record["fields"].items() if k != "model_type"}
    return AutoConfig.for_model(record["model_type"], **fields)


def _numbers(value: Any) -> Any:
    """What transformers writes for numbers that JSON lacks, such as infinity, as numbers."""
    if isinstance(value, dict) and list(value) == ["__float__"]:
        return float(value["__float__"])
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    return [_numbers(v) for v in value] if isinstance(value, list) else value
