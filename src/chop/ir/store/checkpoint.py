"""Checkpoints of MaseGraphs: tensors as safetensors, everything else as JSON.

Loading executes no code from the file and no code that the file selects: allowed names are in
`chop.ir.store.vocabulary` or passed by the caller. A damaged, forged or foreign file raises a
CheckpointError with the place of the fault.
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
"""Versions that can be read: 1 has no checksums and no views, 3 has packed tensors."""
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
"""Prefix of the names of example inputs among the tensors."""
GUARDS = "guards"
"""Key of the guards on input sizes."""
GENERATION = "generation"
"""Key of the generation config of a language model with a cache."""
_KEYS_SINCE_2 = {"views": dict, "tensors": dict, "sha256": str, GUARDS: (dict, type(None))}
_KEYS_SINCE_3 = {**_KEYS_SINCE_2, "packed": dict}
_KEYS_OF = {1: _KEYS, 2: {**_KEYS, **_KEYS_SINCE_2}, 3: {**_KEYS, **_KEYS_SINCE_3}}


_PERSISTENT = ([("persistent", True)], [("persistent", False)])


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Content of a checkpoint."""

    model: TracedModule
    dummy_in: dict[str, torch.Tensor] | None


def save_graph(
    model: TracedModule,
    path: str | Path,
    dummy_in: Mapping[str, Any] | None = None,
    *,
    is_packed: bool = False,
) -> None:
    """Write `<path>.json` and `<path>.safetensors`, replacing an old pair in one step.

    `is_packed`: parameters in formats of at most 8 bits are stored with those bits.
    """
    model.state_dict()  # pruned layers write their zeros
    tensors, aliases, views = stored_tensors(_used_tensors(model))
    inputs = {f"{EXAMPLE}{k}": v for k, v in (dummy_in or {}).items() if torch.is_tensor(v)}
    # a copy: the file format has no views
    examples = {name: value.detach().clone().contiguous() for name, value in inputs.items()}
    packed = Packed(tensors)
    if is_packed:
        bases = {view["of"] for view in views.values()}
        packed = pack_tensors(model, tensors, _used(model, "get_attr"), bases)
    stored = {**packed.tensors, **examples}
    identity, guards = uuid.uuid4().hex, guards_of(model)
    description: dict[str, Any] = {
        "format": FORMAT,
        "version": PACKED_VERSION if is_packed else VERSION,
        "id": identity,
        "class_name": type(model).__name__,
        "nodes": [encode_node(n) for n in model.graph.nodes],
        "modules": _encode_modules(model, packed.rounded),
        "attributes": _encode_attributes(model),
        "aliases": aliases,
        "views": views,
        "tensors": facts_of(stored),
        "training": _training_flags(model),
        "output": _encode_template(template_of(model)),
        "config": encode_config(getattr(model, "config", None)),
        GUARDS: None if guards is None else guards.to_data(),
    }
    if model.generation_config is not None:
        description[GENERATION] = json.loads(model.generation_config.to_json_string(False))
    if is_packed:
        description["packed"] = packed.records
    description["sha256"] = digest(description)
    write_pair(Path(path), _as_lines(description), stored, identity)


def _as_lines(description: Mapping[str, Any]) -> str:
    """Return JSON text with one line per entry, and one per item of an entry that is a list.

    `json.dumps(..., indent=1)` runs in Python instead of C, which takes ten times as long.

    >>> print(_as_lines({"version": 1, "nodes": ["a", "b"]}))
    {
    "version": 1,
    "nodes": [
    "a",
    "b"
    ]
    }
    """

    def line(value: Any) -> str:
        return json.dumps(value, allow_nan=False)

    def entry(value: Any) -> str:
        return (
            "[\n" + ",\n".join(map(line, value)) + "\n]" if isinstance(value, list) else line(value)
        )

    entries = (f"{line(key)}: {entry(value)}" for key, value in description.items())
    return "{\n" + ",\n".join(entries) + "\n}"


def _encode_modules(model: fx.GraphModule, rounded: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the records of modules; layers with `rounded` parameters get their names."""
    targets = sorted(_used(model, "call_module"))
    modules = {t: encode_module(model.get_submodule(t), t) for t in targets}
    for path, names in rounded.items():
        leaf = next(p for p in modules if path == p or path.startswith(f"{p}."))
        record = modules[leaf]
        for part in path.removeprefix(leaf).split(".")[1:]:
            record = record["children"][part]
        record["attributes"]["held"] = names
    return modules


def digest(description: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a description without its checksum."""
    content = {k: v for k, v in description.items() if k != "sha256"}
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def save_state_dict(model: nn.Module, path: str | Path) -> None:
    """Write only the tensors, as `<path>.safetensors`."""
    target = with_suffix(Path(path), ".safetensors")
    tensors = {k: v.detach().clone().contiguous() for k, v in model.state_dict().items()}
    with whole_file(target) as draft:
        save_file(tensors, draft)


def _used(model: fx.GraphModule, *ops: str) -> set[str]:
    return {str(n.target) for n in model.graph.nodes if n.op in ops}


def _used_tensors(model: fx.GraphModule) -> list[tuple[str, torch.Tensor]]:
    """Return parameters and buffers that nodes use."""
    used = _used(model, "call_module", "get_attr")
    inside = tuple(f"{target}." for target in used)
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return [(name, t) for name, t in named if name in used or name.startswith(inside)]


def _encode_attributes(model: fx.GraphModule) -> dict[str, Any]:
    """Return the records of parameters and buffers that `get_attr` nodes read."""
    records = {}
    for target in sorted(_used(model, "get_attr")):
        owner_name, _, name = target.rpartition(".")
        owner = model.get_submodule(owner_name)
        if name in owner._parameters:
            records[target] = {"requires_grad": grad_of(owner._parameters[name])}
        elif name in owner._buffers:
            records[target] = {"persistent": name not in owner._non_persistent_buffers_set}
        else:
            raise CheckpointError(f"attribute '{target}' is neither a parameter nor a buffer.")
    return records


def _training_flags(model: fx.GraphModule) -> dict[str, bool]:
    """Return the modes of modules that nodes use, with the modules around and inside them.

    Modules whose nodes were erased are not loaded again.
    """
    used = _used(model, "call_module", "get_attr")
    paths = {"", *used}.union(*map(_above, used))
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


def is_checkpoint(file: Path) -> bool:
    """Return True if `file` is the `.json` of a checkpoint, by its first bytes."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return f'"format": "{FORMAT}"'.encode() in opened.read(200)


def outline(file: Path) -> tuple[str, dict[str, Any]]:
    """Return class name and Hugging Face config of a checkpoint, without reading tensors.

    Both are empty if the file lacks them or is damaged.
    """
    try:
        content = read_json(file, CheckpointError)
    except CheckpointError:
        return "", {}
    description = content if isinstance(content, dict) else {}
    name, config = description.get("class_name"), description.get("config")
    fields = config.get("fields") if isinstance(config, dict) else None
    return (name if isinstance(name, str) else ""), (fields if isinstance(fields, dict) else {})


def load_graph(path: str | Path, classes: Iterable[Any] = ()) -> Loaded:
    """Return the graph that `save_graph` wrote; raise a CheckpointError for other files."""
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
            raise CheckpointError(
                f"{where}: tensor {shown(EXAMPLE + name)}: the graph has no such input. "
                f"Inputs: {', '.join(model.input_names):.200}."
            )
    return inputs


def _read_pair(file: Path, weights: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    if not file.is_file():
        raise CheckpointError(f"{file}: no such checkpoint.")
    with folder_lock(file.parent, shared=True):  # so that both files are of one pair
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
    content = read_json(file, CheckpointError)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{file}: not a MaseGraph checkpoint.")
    version = content.get("version")
    if type(version) is not int or version not in READABLE:
        listed = f"{', '.join(str(v) for v in READABLE[:-1])} and {READABLE[-1]}"
        raise CheckpointError(f"{file}: version {shown(version)}; this release reads {listed}.")
    keys: dict[str, Any] = _KEYS_OF[version]
    for key, kind in keys.items():
        if not isinstance(content.get(key, file), kind):
            raise CheckpointError(f"{file}: key '{key}' is missing or not what it should be.")
    unknown = content.keys() - keys.keys() - {GENERATION}
    if unknown:
        raise CheckpointError(f"{file}: unknown key {shown(min(unknown))}.")
    if version != 1 and content["sha256"] != digest(content):
        raise CheckpointError(
            f"{file}: its checksum is not the one it was saved with: it was damaged or edited."
        )
    return content


def decode_model(
    description: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], decode: Decoder
) -> TracedModule:
    """Return the module of a description and its tensors."""
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
        called = {str(n.target) for n in graph.nodes if n.op in ("call_module", "get_attr")}
        if attributes.keys() - called:
            name = min(attributes.keys() - called)
            raise CheckpointError(f"modules: no node uses '{name:.200}'.")
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
    except Exception as error:  # transformers has its own checks
        raise CheckpointError(f"{GENERATION}: not what transformers takes ({error!r}).") from error


def _decode_parts(
    description: Mapping[str, Any], find: TensorFinder, decode: Decoder
) -> dict[str, Any]:
    """Return modules and tensors by path.

    Only a tensor of a module that nodes also read has a path inside that of another part.
    """
    _check_paths(description["modules"], description["attributes"])
    parts: dict[str, Any] = {
        name: decode_module(record, name, find, decode)
        for name, record in description["modules"].items()
    }

    @functools.cache
    def tensors(owner: str) -> dict[str, torch.Tensor]:
        return dict([*parts[owner].named_parameters(), *parts[owner].named_buffers()])

    for name, record in description["attributes"].items():
        tensor = _decode_attribute(name, record, find)
        for owner in _above(name) & description["modules"].keys():
            if tensors(owner).get(name.removeprefix(f"{owner}.")) is not tensor:
                raise CheckpointError(f"attributes.{name}: not the tensor that '{owner}' has.")
        parts[name] = tensor
    return parts


def _check_paths(modules: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    for path in (*modules, *attributes):
        if not vocabulary.is_module_path(path):
            raise CheckpointError(f"modules: {shown(path)} is not the path of a part of a model.")
        above = _above(path)
        inside = above & attributes.keys() or (path in modules and above & modules.keys())
        if inside or (path in modules and path in attributes):
            raise CheckpointError(f"modules: '{path}' is there twice, or inside another.")


def _above(path: str) -> set[str]:
    """Return the paths that contain `path`."""
    parts = path.split(".")
    return {".".join(parts[:i]) for i in range(1, len(parts))}


def _decode_attribute(name: str, record: Any, find: TensorFinder) -> torch.Tensor:
    where = f"attributes.{name}"
    if isinstance(record, dict) and record.keys() == {"requires_grad"}:
        return find.parameter(name, record["requires_grad"], where)
    if isinstance(record, dict) and list(record.items()) in _PERSISTENT:
        return find.buffer(name, where)
    raise CheckpointError(f"{where}: expected requires_grad or persistent, got {shown(record)}.")


def _set_flags(model: nn.Module, description: Mapping[str, Any]) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, training in description["training"].items():
        if name not in modules or not isinstance(training, bool):
            raise CheckpointError(f"training.{name:.200}: no such module, or not true or false.")
        modules[name].training = training
    listed = {id(modules[name]) for name in description["training"]}
    missing = [name for name, module in modules.items() if id(module) not in listed]
    if missing:
        raise CheckpointError(f"training: nothing is said of '{missing[0]}'.")
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
    name, kind = record["class"], None
    if isinstance(name, str):
        kind = decode.classes.get(name) or vocabulary.find_output(name)
    if name is not None and not isinstance(kind, type):
        raise CheckpointError(
            f"{where}.class: {shown(name)} is not the class of an output. Allowed: those of "
            "transformers, and those handed in: MaseGraph.from_checkpoint(path, classes=[…])."
        )
    parts: dict[Any, OutputTemplate] = {}
    for pair in record["parts"]:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (str, int):
            raise CheckpointError(f"{where}.parts: expected pairs, got {shown(pair)}.")
        part = _decode_template(pair[1], f"{where}.parts.{pair[0]}", decode)
        if part is not None:
            parts[pair[0]] = part
    return OutputTemplate(kind, parts)
