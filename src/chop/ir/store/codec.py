"""Encoding of graphs and their values as JSON, and decoding.

Values that JSON lacks become one-key objects: {"$tuple": [1, 2]}, {"$node": "fc1"}. Everything that
is read is data: names are looked up only in `chop.ir.store.vocabulary`, and only as functions of
nodes, unless the caller trusts the source.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from chop.config import parse
from chop.errors import CheckpointError, ConfigError
from chop.files import shown
from chop.hub_config import check_config
from chop.ir.applied_function import applied
from chop.ir.design_spec import DesignSpec
from chop.ir.meta import CommonMeta, HardwareMeta, MaseMetadata, SoftwareMeta, ValueMeta
from chop.ir.store import vocabulary
from chop.ir.store.type_hints import fits, hints_of, text_of
from chop.ir.store.vocabulary import function_name
from chop.nn.quantizers import FORMATS, Quantizer

_RECORDS: dict[str, Any] = {
    c.__name__: c for c in (ValueMeta, CommonMeta, SoftwareMeta, HardwareMeta, MaseMetadata)
}
_TORCH_VALUES = {
    name: value
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout)
}
_FLOATS = {text: float(text) for text in ("inf", "-inf", "nan")}
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|meta)(:[0-9]{1,3})?", re.ASCII)
LARGEST_NUMBER = 2**64
"""Largest magnitude of an integer in a file."""
LONGEST_TEXT = 100_000
"""Most characters of a text in a file."""

_ITEMS = frozenset({"$tuple", "$set", "$dict", "$slice", "$range"})
_PLAIN = _ITEMS | {"$float", "$complex", "$ellipsis", "$torch", "$device"}
ARGUMENTS = _PLAIN | {"$node"}
"""Kinds of objects in a node's arguments."""
ATTRIBUTES = _PLAIN | {"$own", "$quantizer", "$config"}
"""Kinds of objects in a module's attributes."""
METADATA = _PLAIN | {"$node", "$quantizer", "$record", "$design"}
"""Kinds of objects in metadata."""


def encode_node(node: fx.Node) -> dict[str, Any]:
    """Return the record of a node."""
    target = node.target if isinstance(node.target, str) else function_name(node.target)
    record = {
        "name": node.name,
        "op": node.op,
        "target": target,
        "args": encode(node.args, f"node '{node.name}'"),
        "kwargs": encode(dict(node.kwargs), f"node '{node.name}'"),
    }
    if node.meta.get("owner"):
        record["owner"] = node.meta["owner"]
    if "mase" in node.meta:
        record["mase"] = encode(_without_values(node), f"node '{node.name}'")
    return record


def _without_values(node: fx.Node) -> MaseMetadata:
    """Return metadata without tensors, modules, functions and links to erased nodes."""

    def thin(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return value if value.graph is node.graph and not value._erased else None
        if isinstance(value, torch.Tensor | nn.Module):
            return None
        if dataclasses.is_dataclass(value) and type(value).__name__ in _RECORDS:
            fields = {f.name: thin(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return _RECORDS[type(value).__name__](**fields)
        if isinstance(value, dict):
            return {k: thin(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(thin(v) for v in value)
        is_function = callable(value) and not isinstance(value, Quantizer)
        return None if is_function else value

    meta: MaseMetadata = thin(node.meta["mase"])
    return meta


def encode(value: Any, where: str, own: Mapping[int, str] | None = None) -> Any:
    """Return `value` as JSON; values that JSON lacks become one-key objects {"$kind": …}."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if dataclasses.is_dataclass(value) and type(value).__name__ in _RECORDS:
        fields = _encode_fields(value, where)
        return {
            "$record": [type(value).__name__, {k: v for k, v in fields.items() if v is not None}]
        }
    for kind, encoder in _ENCODERS.items():
        if isinstance(value, kind):
            return encoder(value, where, own)
    if hasattr(value, "to_json_string") and hasattr(value, "model_type"):
        return {"$config": encode_config(value)}
    if callable(value):
        return {"$function": function_name(value)}
    raise CheckpointError(f"{where}: a value of type '{type(value).__name__}' cannot be saved.")


def encode_config(config: Any) -> Any:
    """Return the config of a Hugging Face model as data, None for another object."""
    if config is None or not hasattr(config, "to_json_string"):
        return None
    fields = json.loads(config.to_json_string(False))
    return {"model_type": config.model_type, "fields": encode(fields, "config")}


def _encode_tensor(value: torch.Tensor, where: str, own: Mapping[int, str] | None) -> Any:
    if own is None or id(value) not in own:
        raise CheckpointError(
            f"{where}: a tensor that is neither parameter nor buffer cannot be saved. "
            "Register it as a buffer."
        )
    return {"$own": own[id(value)]}


def _encode_mapping(value: Mapping[Any, Any], where: str, own: Any) -> Any:
    pairs = {k: encode(v, where, own) for k, v in value.items()}
    if all(isinstance(k, str) and not k.startswith("$") for k in pairs):
        return pairs
    return {"$dict": [[encode(k, where), v] for k, v in pairs.items()]}


def _encode_fields(value: Any, where: str) -> dict[str, Any]:
    return {f.name: encode(getattr(value, f.name), where) for f in dataclasses.fields(value)}


_ENCODERS: dict[Any, Callable[[Any, str, Any], Any]] = {
    fx.Node: lambda v, where, own: {"$node": v.name},
    tuple: lambda v, where, own: {"$tuple": [encode(x, where, own) for x in v]},
    list: lambda v, where, own: [encode(x, where, own) for x in v],
    set: lambda v, where, own: {"$set": [encode(x, where, own) for x in sorted(v, key=repr)]},
    Mapping: _encode_mapping,
    torch.Tensor: _encode_tensor,
    slice: lambda v, where, own: {
        "$slice": [encode(x, where, own) for x in (v.start, v.stop, v.step)]
    },
    range: lambda v, where, own: {"$range": [v.start, v.stop, v.step]},
    (torch.dtype, torch.memory_format, torch.layout): lambda v, where, own: {
        "$torch": str(v).removeprefix("torch.")
    },
    torch.device: lambda v, where, own: {"$device": str(v)},
    complex: lambda v, where, own: {"$complex": [encode(v.real, where), encode(v.imag, where)]},
    type(Ellipsis): lambda v, where, own: {"$ellipsis": True},
    Quantizer: lambda v, where, own: {"$quantizer": [v.name, _encode_fields(v, where)]},
    DesignSpec: lambda v, where, own: {"$design": v.to_config()},
}


class Decoder:
    """Decoder of JSON that checks every value.

    `classes` are classes and functions of the caller. With `trust` any name is looked up, for
    data that this process wrote.
    """

    def __init__(self, classes: Iterable[Any] = (), *, trust: bool = False) -> None:
        self.classes = {f"{c.__module__}.{c.__qualname__}": c for c in classes}
        self.trust = trust
        self.is_old = False
        self.nodes: dict[str, fx.Node] = {}

    def __call__(
        self,
        value: Any,
        where: str,
        kinds: frozenset[str] = METADATA,
        own: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return `value` as it was before `encode`; `kinds` are the allowed one-key objects."""
        if isinstance(value, list):
            return [self(v, f"{where}[{i}]", kinds, own) for i, v in enumerate(value)]
        if not isinstance(value, dict):
            return _plain(value, where)
        kind = next((k for k in value if k.startswith("$")), None)
        if kind is None:
            return {k: self(v, f"{where}.{k}", kinds, own) for k, v in value.items()}
        if len(value) != 1 or not (kind in kinds or (self.trust and kind in _DECODERS)):
            allowed = ", ".join(sorted(kinds))
            raise CheckpointError(f"{where}: {shown(kind)} is not allowed. Allowed: {allowed}.")
        if kind == "$own":
            if not isinstance(value[kind], str) or value[kind] not in (own or {}):
                raise CheckpointError(f"{where}: the module has no tensor {shown(value[kind])}.")
            return (own or {})[value[kind]]
        return _DECODERS[kind](self, value[kind], f"{where}.{kind}", kinds)

    def function(self, name: Any, where: str) -> Any:
        """Return the function that a node may call by `name`."""
        if not isinstance(name, str):
            raise CheckpointError(f"{where}: expected the name of a function, got {shown(name)}.")
        if name in self.classes:
            return self.classes[name]
        if name.removesuffix(".apply") in self.classes:
            return applied(self.classes[name.removesuffix(".apply")].apply)
        function = vocabulary.look_up(name) if self.trust else vocabulary.find_function(name)
        if not callable(function):
            raise CheckpointError(
                f"{where}: function {shown(name)} is not an operation a graph may call. If you "
                "trust it, hand it in: MaseGraph.from_checkpoint(path, classes=[…])."
            )
        return applied(function)


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        raise CheckpointError(f"{where}: a number of {value.bit_length()} bits. Allowed: 64.")
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise CheckpointError(f"{where}: {len(value)} characters. Allowed: {LONGEST_TEXT}.")
    return value


def _items(value: Any, where: str, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or count not in (None, len(value)):
        size = "values" if count is None else f"{count} values"
        raise CheckpointError(f"{where}: expected a list of {size}, got {shown(value)}.")
    return value


def _decode_node(decode: Decoder, name: Any, where: str, kinds: frozenset[str]) -> fx.Node:
    if not isinstance(name, str) or name not in decode.nodes:
        raise CheckpointError(f"{where}: node {shown(name)} is used before it is made.")
    return decode.nodes[name]


def _hashable(values: Sequence[Any], where: str) -> None:
    for value in values:
        try:
            hash(value)
        except TypeError:
            raise CheckpointError(f"{where}: {shown(value)} cannot be a key.") from None


def _decode_set(decode: Decoder, items: Any, where: str, kinds: frozenset[str]) -> Any:
    members = decode(_items(items, where), where, kinds)
    _hashable(members, where)
    return set(members)


def _decode_dict(decode: Decoder, pairs: Any, where: str, kinds: frozenset[str]) -> Any:
    rows = [_items(pair, where, 2) for pair in _items(pairs, where)]
    keys = [decode(key, f"{where} key", _PLAIN) for key, _ in rows]
    _hashable(keys, where)
    if len(set(keys)) != len(keys):
        raise CheckpointError(f"{where}: a key is there twice.")
    return {k: decode(v, f"{where}.{k}", kinds) for k, (_, v) in zip(keys, rows, strict=True)}


def _decode_range(decode: Decoder, parts: Any, where: str, kinds: frozenset[str]) -> range:
    numbers = decode(_items(parts, where, 3), where, frozenset())
    if any(type(n) is not int for n in numbers) or numbers[2] == 0:
        raise CheckpointError(f"{where}: {shown(parts)} are not the three numbers of a range.")
    return range(*numbers)


def _looked_up(table: Mapping[str, Any], words: str) -> Callable[..., Any]:
    """Return a decoder of text that is a key of `table`."""

    def decode_key(decode: Decoder, key: Any, where: str, kinds: frozenset[str]) -> Any:
        if not isinstance(key, str) or key not in table:
            raise CheckpointError(f"{where}: {shown(key)} is not {words}.")
        return table[key]

    return decode_key


def _decode_complex(decode: Decoder, parts: Any, where: str, kinds: frozenset[str]) -> complex:
    numbers = decode(_items(parts, where, 2), where, frozenset({"$float"}))
    if any(type(n) not in (int, float) for n in numbers):
        raise CheckpointError(f"{where}: {shown(parts)} are not two numbers.")
    return complex(*numbers)


def _decode_ellipsis(decode: Decoder, flag: Any, where: str, kinds: frozenset[str]) -> Any:
    if flag is not True:
        raise CheckpointError(f"{where}: expected true, got {shown(flag)}.")
    return ...


def _decode_device(decode: Decoder, text: Any, where: str, kinds: Any) -> torch.device:
    if not isinstance(text, str) or not _DEVICE.fullmatch(text):
        raise CheckpointError(f"{where}: {shown(text)} is not a device.")
    return torch.device(text)


def _decode_quantizer(decode: Decoder, pair: Any, where: str, kinds: Any) -> Quantizer:
    name, fields = _items(pair, where, 2)
    if not isinstance(name, str) or name not in FORMATS or FORMATS[name].name != name:
        raise CheckpointError(f"{where}: unknown number format {shown(name)}.")
    settings = decode(_mapping(fields, where), where, _PLAIN)
    try:
        quantizer = parse(FORMATS[name], settings, where)
    except ConfigError as error:
        raise CheckpointError(str(error)) from error
    missing = {f.name for f in dataclasses.fields(FORMATS[name])} - settings.keys()
    if missing and not decode.is_old:
        raise CheckpointError(f"{where}: key '{min(missing)}' is missing.")
    return quantizer


def _decode_design(decode: Decoder, config: Any, where: str, kinds: Any) -> DesignSpec:
    settings = decode(_mapping(config, where), where, frozenset())
    try:
        return DesignSpec.from_config(settings, where)
    except ConfigError as error:
        raise CheckpointError(str(error)) from error


def _decode_record(decode: Decoder, pair: Any, where: str, kinds: frozenset[str]) -> Any:
    name, fields = _items(pair, where, 2)
    if not isinstance(name, str) or name not in _RECORDS:
        raise CheckpointError(f"{where}: unknown metadata record {shown(name)}.")
    hints = hints_of(_RECORDS[name])
    allowed = dataclasses.fields(_RECORDS[name])
    required = {f.name for f in allowed if f.default_factory is not dataclasses.MISSING}
    required |= {f.name for f in allowed if f.default is False}
    values = {}
    for key, raw in _mapping(fields, where).items():
        place = f"{where}.{key}"
        if key not in {f.name for f in allowed}:
            raise CheckpointError(f"{place}: {name} has no such field.")
        values[key] = decode(raw, place, kinds)
        if not fits(values[key], hints[key]):
            raise CheckpointError(
                f"{place}: expected {text_of(hints[key])}, got {shown(values[key])}."
            )
    is_checked = not (decode.is_old or decode.trust)
    if is_checked and not required <= values.keys():
        raise CheckpointError(f"{where}: expected {', '.join(sorted(required))}.")
    record = _RECORDS[name](**values)
    if isinstance(record, ValueMeta) and is_checked:
        if values.get("is_applied") and values.get("format") is None:
            raise CheckpointError(f"{where}.is_applied: true, where there is no format.")
        for key, derived in record.format_keys().items():
            if values.get(key) != derived:
                raise CheckpointError(
                    f"{where}.{key}: {shown(values.get(key))}, where its format says "
                    f"{shown(derived)}."
                )
    return record


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: expected a mapping, got {shown(value)}.")
    return value


def decode_config(record: Any, decode: Decoder, where: str) -> Any:
    """Return the config that `encode_config` wrote."""
    from transformers import CONFIG_MAPPING

    record = _mapping(record, where)
    if record.keys() != {"model_type", "fields"} or not isinstance(record["fields"], dict):
        raise CheckpointError(f"{where}: expected model_type and fields, got {shown(record)}.")
    kind = record["model_type"]
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise CheckpointError(f"{where}.model_type: {shown(kind)} is not a type of transformers.")
    cls = CONFIG_MAPPING[kind]
    fields = decode(record["fields"], f"{where}.fields", frozenset({"$float", "$dict"}))
    for key in fields:
        if not vocabulary.is_identifier(key) or callable(getattr(cls, key, None)):
            raise CheckpointError(f"{where}.fields: {shown(key)} cannot be a field.")
    check_config(fields, f"{where}.fields", CheckpointError)
    try:
        return cls(**{k: _numbers(v) for k, v in fields.items() if k != "model_type"})
    except Exception as error:  # every config class has its own checks
        raise CheckpointError(f"{where}.fields: not those of a '{kind}' ({error!r}).") from error


def _numbers(value: Any) -> Any:
    """Return `value` with transformers' objects for infinity and NaN as numbers."""
    if isinstance(value, dict) and list(value) == ["__float__"]:
        return float(value["__float__"])
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    return [_numbers(v) for v in value] if isinstance(value, list) else value


_DECODERS: dict[str, Callable[[Decoder, Any, str, frozenset[str]], Any]] = {
    "$node": _decode_node,
    "$tuple": lambda decode, v, where, kinds: tuple(decode(_items(v, where), where, kinds)),
    "$set": _decode_set,
    "$dict": _decode_dict,
    "$slice": lambda decode, v, where, kinds: slice(*decode(_items(v, where, 3), where, kinds)),
    "$range": _decode_range,
    "$float": _looked_up(_FLOATS, "one of inf, -inf, nan"),
    "$complex": _decode_complex,
    "$ellipsis": _decode_ellipsis,
    "$device": _decode_device,
    "$torch": _looked_up(_TORCH_VALUES, "a dtype, layout or memory format"),
    "$quantizer": _decode_quantizer,
    "$record": _decode_record,
    "$design": _decode_design,
    "$function": lambda decode, name, where, kinds: decode.function(name, where),
    "$config": lambda decode, record, where, kinds: decode_config(record, decode, where),
}
