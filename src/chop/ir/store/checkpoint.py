"""MaseGraphs on disk: tensors as safetensors, everything else as JSON.

Loading never executes code from the file, nor code that the file chooses: what it may name is in
`chop.ir.store.vocabulary`, or handed in by the caller. A file that is damaged, forged or of
something else is a CheckpointError that says where.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import fx, nn

from chop.errors import CheckpointError
from chop.files import folder_lock, read_json, shown, whole_file
from chop.ir.guards import Guards, guards_of
from chop.ir.outputs import OutputTemplate, template_of
from chop.ir.store import vocabulary
from chop.ir.store.codec import Decoder, decode_config, encode_config, encode_node
from chop.ir.store.modules import decode_module, encode_module, grad_of
from chop.ir.store.node_records import decode_graph, lint
from chop.ir.store.packed_tensors import Packed, pack_tensors, unpack_tensors
from chop.ir.store.tensors import (
    FORMAT,
    TensorFinder,
    check_facts,
    facts_of,
    read_tensors,
    stored_tensors,
    with_suffix,
    write_pair,
)
from chop.ir.store.traced import TracedModule
from chop.log import get_logger

logger = get_logger(__name__)
VERSION = 2
PACKED_VERSION = 3
READABLE = (1, 2, 3)
"""Version 1 has no checksums, and no views; version 3 has tensors in the bits of their formats."""
_KEYS = {
    "format": str,
    "version": int,
    "id": str,
    "class_name": str,
    "nodes": list,
    "modules": dict,
    "attributes": dict,
    "aliases": dict,
    "training": dict,
    "output": (dict, type(None)),
    "config": (dict, type(None)),
}
EXAMPLE = "dummy_in/"
"""Start of the names of example inputs among the tensors."""
GUARDS = "guards"
"""What must hold of the sizes of inputs, as plain data."""
GENERATION = "generation"
"""How a language model with a cache goes on by default, as plain data; in its files alone."""
_KEYS_SINCE_2 = {"views": dict, "tensors": dict, "sha256": str, GUARDS: (dict, type(None))}
_KEYS_SINCE_3 = {**_KEYS_SINCE_2, "packed": dict}
_KEYS_OF = {1: _KEYS, 2: {**_KEYS, **_KEYS_SINCE_2}, 3: {**_KEYS, **_KEYS_SINCE_3}}


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a checkpoint holds."""

    model: TracedModule
    dummy_in: dict[str, torch.Tensor] | None


# -- saving ----------------------------------------------------------------------------------


def save_graph(
    model: TracedModule,
    path: str | Path,
    dummy_in: Mapping[str, Any] | None = None,
    *,
    is_packed: bool = False,
) -> None:
    """Write `<path>.json` and `<path>.safetensors`: one step from the old pair to the new.

    `is_packed`: what layers have in formats of at most 8 bits takes those bits.
    """
    model.state_dict()  # pruned layers write their zeros before they are saved
    tensors, aliases, views = stored_tensors(_used_tensors(model))
    inputs = {f"{EXAMPLE}{k}": v for k, v in (dummy_in or {}).items() if torch.is_tensor(v)}
    # a copy: the file format has no views
    examples = {name: value.detach().clone().contiguous() for name, value in inputs.items()}
    packed = Packed(tensors)
    if is_packed:
        bases = {told["of"] for told in views.values()}
        packed = pack_tensors(model, tensors, _used(model, "get_attr"), bases)
    stored = {**packed.tensors, **examples}
    identity = uuid.uuid4().hex
    description: dict[str, Any] = {
        "format": FORMAT,
        "version": PACKED_VERSION if is_packed else VERSION,
        "id": identity,
        "class_name": type(model).__name__,
        "nodes": [encode_node(n) for n in model.graph.nodes],
        "modules": _with_held(_encode_leaves(model), packed.held),
        "attributes": _encode_attributes(model),
        "aliases": aliases,
        "views": views,
        "tensors": facts_of(stored),
        "training": _training_flags(model),
        "output": _encode_template(template_of(model)),
        "config": encode_config(getattr(model, "config", None)),
        GUARDS: _encode_guards(guards_of(model)),
    }
    if model.generation_config is not None:
        description[GENERATION] = json.loads(model.generation_config.to_json_string(False))
    if is_packed:
        description["packed"] = packed.records
    description["sha256"] = digest(description)
    text = json.dumps(description, indent=1, allow_nan=False)
    write_pair(Path(path), text, stored, identity)


def _with_held(modules: dict[str, Any], held: Mapping[str, list[str]]) -> dict[str, Any]:
    """The records of modules, those of layers that hold parameters with their names."""
    for path, names in held.items():
        leaf = next(p for p in modules if path == p or path.startswith(f"{p}."))
        record = modules[leaf]
        for part in path.removeprefix(leaf).split(".")[1:]:
            record = record["children"][part]
        record["attributes"]["held"] = names
    return modules


def digest(description: Mapping[str, Any]) -> str:
    """SHA-256 of all that a description says but this."""
    said = {k: v for k, v in description.items() if k != "sha256"}
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()


def save_state_dict(model: nn.Module, path: str | Path) -> None:
    """Write the tensors alone, as `<path>.safetensors`."""
    target = with_suffix(Path(path), ".safetensors")
    tensors = {k: v.detach().clone().contiguous() for k, v in model.state_dict().items()}
    with whole_file(target) as draft:
        save_file(tensors, draft)


def _used(model: fx.GraphModule, *ops: str) -> set[str]:
    return {str(n.target) for n in model.graph.nodes if n.op in ops}


def _used_tensors(model: fx.GraphModule) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers that nodes reach; a pass may have left others."""
    used = _used(model, "call_module", "get_attr")
    inside = tuple(f"{target}." for target in used)
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return [(name, t) for name, t in named if name in used or name.startswith(inside)]


def _encode_leaves(model: fx.GraphModule) -> dict[str, Any]:
    targets = sorted(_used(model, "call_module"))
    return {t: encode_module(model.get_submodule(t), t) for t in targets}


def _encode_attributes(model: fx.GraphModule) -> dict[str, Any]:
    """The parameters and buffers that `get_attr` nodes read."""
    found = {}
    for target in sorted(_used(model, "get_attr")):
        owner_name, _, name = target.rpartition(".")
        owner = model.get_submodule(owner_name)
        if name in owner._parameters:
            found[target] = {"requires_grad": grad_of(owner._parameters[name])}
        elif name in owner._buffers:
            found[target] = {"persistent": name not in owner._non_persistent_buffers_set}
        else:
            raise CheckpointError(f"attribute '{target}' is neither a parameter nor a buffer.")
    return found


def _training_flags(model: fx.GraphModule) -> dict[str, bool]:
    """Mode of every module that a node uses, or that holds or is part of such a module.

    A pass of the user's own may erase nodes and leave their modules: those are not loaded again.
    """
    used = _used(model, "call_module", "get_attr")
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


# -- loading ---------------------------------------------------------------------------------


def is_checkpoint(file: Path) -> bool:
    """Whether `file` is the `.json` of a checkpoint, by its first lines."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return f'"format": "{FORMAT}"'.encode() in opened.read(200)


def outline(file: Path) -> tuple[str, dict[str, Any]]:
    """The class that a checkpoint's `.json` is of, and its Hugging Face config; no tensor is read.

    Both are empty where the file does not tell, or is damaged: loading it says so.
    """
    try:
        found = read_json(file, CheckpointError)
    except CheckpointError:
        return "", {}
    told = found if isinstance(found, dict) else {}
    name, config = told.get("class_name"), told.get("config")
    fields = config.get("fields") if isinstance(config, dict) else None
    return (name if isinstance(name, str) else ""), (fields if isinstance(fields, dict) else {})


def load_graph(path: str | Path, classes: Iterable[Any] = ()) -> Loaded:
    """The graph that `save_graph` wrote; a damaged or foreign file is a CheckpointError."""
    file, weights = with_suffix(Path(path), ".json"), with_suffix(Path(path), ".safetensors")
    description, tensors = _read_pair(file, weights)
    decode = Decoder(classes)
    decode.is_old = description["version"] == 1
    try:
        model = decode_model(description, tensors, decode)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{file}: damaged checkpoint ({error!r}).") from error
    return Loaded(model, _examples(model, tensors, str(file)) or None)


def _examples(
    model: TracedModule, tensors: Mapping[str, torch.Tensor], where: str
) -> dict[str, torch.Tensor]:
    """Return the example inputs by name; raise CheckpointError if the graph has no such input."""
    inputs = {n.removeprefix(EXAMPLE): t for n, t in tensors.items() if n.startswith(EXAMPLE)}
    for name in inputs:
        if not vocabulary.is_input_name(name) or name not in model.input_names:
            known = ", ".join(model.input_names)
            raise CheckpointError(
                f"{where}: tensor {shown(EXAMPLE + name)}: the graph has no such input. "
                f"Inputs: {known:.200}."
            )
    return inputs


def _read_pair(file: Path, weights: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    if not file.is_file():
        raise CheckpointError(f"{file}: no such checkpoint.")
    with folder_lock(file.parent, shared=True):  # no pair is replaced between the two reads
        description = _read_description(file)
        tensors = read_tensors(weights, description["id"])
    if description["version"] == 1:
        logger.warning("%s: written without checksums; export it again to add them.", file)
        return {**description, "views": {}}, tensors
    checked = check_facts(tensors, description["tensors"], str(weights))
    if description["version"] < PACKED_VERSION:
        return description, checked
    try:
        return description, unpack_tensors(checked, description["packed"])
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _read_description(file: Path) -> dict[str, Any]:
    found = read_json(file, CheckpointError)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(f"{file}: not a MaseGraph checkpoint.")
    version = found.get("version")
    if type(version) is not int or version not in READABLE:
        listed = f"{', '.join(str(v) for v in READABLE[:-1])} and {READABLE[-1]}"
        raise CheckpointError(f"{file}: version {shown(version)}; this release reads {listed}.")
    keys: dict[str, Any] = _KEYS_OF[version]
    for key, kind in keys.items():
        if not isinstance(found.get(key, file), kind):
            raise CheckpointError(f"{file}: key '{key}' is missing or not what it should be.")
    unknown = found.keys() - keys.keys() - {GENERATION}
    if unknown:
        raise CheckpointError(f"{file}: unknown key {shown(min(unknown))}.")
    if version != 1 and found["sha256"] != digest(found):
        raise CheckpointError(
            f"{file}: its checksum is not the one it was saved with: it was damaged or edited."
        )
    return found


def decode_model(
    description: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], decode: Decoder
) -> TracedModule:
    """The module a description and its tensors stand for."""
    if not vocabulary.is_identifier(description["class_name"]):
        name = shown(description["class_name"])
        raise CheckpointError(f"class_name: {name} is not an identifier.")
    find = TensorFinder(tensors, description["aliases"], description["views"])
    attributes = _decode_parts(description, find, decode)
    graph = decode_graph(
        description["nodes"], decode, description["modules"], description["attributes"]
    )
    if not decode.is_old:
        find.check_all_used()
        _check_all_called(graph, attributes)
    model = TracedModule(attributes, graph, class_name=description["class_name"])
    lint(model)
    _set_flags(model, description)
    template = _decode_template(description["output"], "output", decode)
    if template is not None:
        template.attach(model)
    if description.get(GUARDS) is not None:
        Guards.from_data(description[GUARDS]).attach(model)
    if description["config"] is not None:
        model.config = decode_config(description["config"], decode, "config")
    if description.get(GENERATION) is not None:
        model.generation_config = _decode_generation(description[GENERATION])
    return model


def _decode_generation(fields: Any) -> Any:
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_dict(fields)
    except Exception as error:  # of any kind: transformers checks the fields in its own way
        raise CheckpointError(f"{GENERATION}: not what transformers takes ({error!r}).") from error


def _check_all_called(graph: fx.Graph, parts: Mapping[str, Any]) -> None:
    called = {str(n.target) for n in graph.nodes if n.op in ("call_module", "get_attr")}
    unused = parts.keys() - called
    if unused:
        raise CheckpointError(f"modules: no node uses '{min(unused):.200}'.")


def _decode_parts(
    description: Mapping[str, Any], find: TensorFinder, decode: Decoder
) -> dict[str, Any]:
    """Modules and tensors by path.

    No path lies inside another's, but for tensors of a module that nodes also read themselves.
    """
    _check_paths(description["modules"], description["attributes"])
    found: dict[str, Any] = {
        name: decode_module(record, name, find, decode)
        for name, record in description["modules"].items()
    }
    tensors = functools.cache(lambda owner: _tensors_of(found[owner]))
    for name, record in description["attributes"].items():
        tensor = _decode_attribute(name, record, find)
        for owner in _above(name) & description["modules"].keys():
            if tensors(owner).get(name.removeprefix(f"{owner}.")) is not tensor:
                raise CheckpointError(f"attributes.{name}: not the tensor that '{owner}' has.")
        found[name] = tensor
    return found


def _tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def _check_paths(modules: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    for path in (*modules, *attributes):
        if not vocabulary.is_module_path(path):
            raise CheckpointError(f"modules: {shown(path)} is not the path of a part of a model.")
        above = _above(path)
        inside = above & attributes.keys() or (path in modules and above & modules.keys())
        if inside or (path in modules and path in attributes):
            raise CheckpointError(f"modules: '{path}' is there twice, or inside another.")


def _above(path: str) -> set[str]:
    """The paths that `path` lies inside."""
    parts = path.split(".")
    return {".".join(parts[:i]) for i in range(1, len(parts))}


def _decode_attribute(name: str, record: Any, find: TensorFinder) -> torch.Tensor:
    where = f"attributes.{name}"
    if isinstance(record, dict) and record.keys() == {"requires_grad"}:
        return find.parameter(name, record["requires_grad"], where)
    if isinstance(record, dict) and list(record.items()) in (
        [("persistent", True)],
        [("persistent", False)],
    ):
        return find.buffer(name, where)
    raise CheckpointError(f"{where}: expected requires_grad or persistent, got {shown(record)}.")


def _set_flags(model: nn.Module, description: Mapping[str, Any]) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, training in description["training"].items():
        if name not in modules or not isinstance(training, bool):
            raise CheckpointError(f"training.{name:.200}: no such module, or not true or false.")
        modules[name].training = training
    told = {id(modules[name]) for name in description["training"]}
    silent = [name for name, module in modules.items() if id(module) not in told]
    if silent:
        raise CheckpointError(f"training: nothing is said of '{silent[0]}'.")
    for name, record in description["attributes"].items():
        owner_name, _, leaf = name.rpartition(".")
        if record.get("persistent") is False:
            modules[owner_name]._non_persistent_buffers_set.add(leaf)


def _decode_template(record: Any, where: str, decode: Decoder) -> OutputTemplate | None:
    if record is None:
        return None
    is_plain = isinstance(record, dict) and record.keys() == {"class", "parts"}
    if not is_plain or not isinstance(record["parts"], list):
        raise CheckpointError(f"{where}: expected class and parts, got {shown(record)}.")
    kind = None if record["class"] is None else _output_class(record["class"], where, decode)
    parts: dict[Any, OutputTemplate] = {}
    for pair in record["parts"]:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (str, int):
            raise CheckpointError(f"{where}.parts: expected pairs, got {shown(pair)}.")
        part = _decode_template(pair[1], f"{where}.parts.{pair[0]}", decode)
        if part is not None:
            parts[pair[0]] = part
    return OutputTemplate(kind, parts)


def _output_class(name: Any, where: str, decode: Decoder) -> type:
    found = None
    if isinstance(name, str):
        found = decode.given.get(name) or vocabulary.find_output(name)
    if not isinstance(found, type):
        raise CheckpointError(
            f"{where}.class: {shown(name)} is not the class of an output. Allowed: those of "
            "transformers, and those handed in: MaseGraph.from_checkpoint(path, classes=[…])."
        )
    return found
