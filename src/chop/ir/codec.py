"""Graphs and the values in them as JSON, and back.

What JSON lacks becomes a one-key object: {"$tuple": [1, 2]}, {"$node": "fc1"}. Names of functions
and classes are looked up only where that is safe, unless the caller says to trust them.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import _get_qualified_name

from chop.errors import CheckpointError
from chop.ir.applied import AppliedFunction, applied
from chop.ir.meta import CommonMeta, HardwareMeta, MaseMetadata, SoftwareMeta, ValueMeta
from chop.nn.quantizers import FORMATS, Quantizer

_RECORDS: dict[str, Any] = {
    c.__name__: c for c in (ValueMeta, CommonMeta, SoftwareMeta, HardwareMeta, MaseMetadata)
}
_SAFE_CLASSES = ("torch.nn.", "chop.", "transformers.")
_SAFE_MODULES = {
    "torch.nn.functional",
    "torch._C._nn",
    "torch._C._linalg",
    "torch._C._fft",
    "torch._C._special",
    "torch.functional",
    "torch.special",
    "torch.linalg",
    "torch.fft",
    "math",
}
_RECIPES = {"chop.nn.quantized.convert.mixed_class", "chop.nn.modules.masked.masked_class"}
"""They make a class of others, which are looked up as any class is."""
_UNSAFE_TENSOR_FUNCTIONS = {"from_file"}
"""Of torch's own: it opens files, and may write to them."""
_SAFE_BUILTINS = {"getattr", "abs", "round", "max", "min", "sum", "len", "float", "int"}
_UNSAFE_OPERATORS = {"methodcaller", "attrgetter", "itemgetter", "call"}


# -- to JSON ---------------------------------------------------------------------------------


def encode_node(node: fx.Node) -> dict[str, Any]:
    target = node.target if isinstance(node.target, str) else function_name(node.target)
    record = {
        "name": node.name,
        "op": node.op,
        "target": target,
        "args": encode(node.args, f"node '{node.name}'"),
        "kwargs": encode(dict(node.kwargs), f"node '{node.name}'"),
    }
    if "mase" in node.meta:
        record["mase"] = encode(_without_values(node.meta["mase"]), f"node '{node.name}'")
    return record


def _without_values(meta: MaseMetadata) -> MaseMetadata:
    """Metadata without the tensors a user asked to keep: they are activations, not the model."""

    def thin(value: Any) -> Any:
        if isinstance(value, torch.Tensor | nn.Module):
            return None
        if dataclasses.is_dataclass(value) and type(value).__name__ in _RECORDS:
            fields = {f.name: thin(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return _RECORDS[type(value).__name__](**fields)
        if isinstance(value, dict):
            return {k: thin(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(thin(v) for v in value)
        return value

    return thin(meta)


def encode(value: Any, where: str, own: Mapping[int, str] | None = None) -> Any:
    """`value` as JSON; what JSON lacks becomes a one-key object {"$kind": …}."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    for kind, encoder in _ENCODERS.items():
        if isinstance(value, kind):
            return encoder(value, where, own)
    if dataclasses.is_dataclass(value) and type(value).__name__ in _RECORDS:
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        given = {k: encode(v, where) for k, v in fields.items() if v is not None}
        return {"$record": [type(value).__name__, given]}
    if callable(value):
        return {"$function": function_name(value)}
    raise CheckpointError(f"{where}: a value of type '{type(value).__name__}' cannot be saved.")


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


def _encode_quantizer(value: Quantizer, where: str, own: Any) -> Any:
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {"$quantizer": [value.name, {k: encode(v, where) for k, v in fields.items()}]}


_ENCODERS: dict[Any, Callable[[Any, str, Any], Any]] = {
    fx.Node: lambda v, where, own: {"$node": v.name},
    tuple: lambda v, where, own: {"$tuple": [encode(x, where, own) for x in v]},
    list: lambda v, where, own: [encode(x, where, own) for x in v],
    set: lambda v, where, own: {"$set": [encode(x, where, own) for x in sorted(v)]},
    Mapping: _encode_mapping,
    torch.Tensor: _encode_tensor,
    slice: lambda v, where, own: {
        "$slice": [encode(x, where, own) for x in (v.start, v.stop, v.step)]
    },
    range: lambda v, where, own: {"$range": [v.start, v.stop, v.step]},
    torch.dtype: lambda v, where, own: {"$torch": str(v).removeprefix("torch.")},
    torch.memory_format: lambda v, where, own: {"$torch": str(v).removeprefix("torch.")},
    torch.layout: lambda v, where, own: {"$torch": str(v).removeprefix("torch.")},
    torch.device: lambda v, where, own: {"$device": str(v)},
    complex: lambda v, where, own: {"$complex": [v.real, v.imag]},
    type(Ellipsis): lambda v, where, own: {"$ellipsis": True},
    Quantizer: _encode_quantizer,
}


# -- from JSON -------------------------------------------------------------------------------


class Decoder:
    """Turns JSON back into values; names are looked up only where that is safe."""

    def __init__(self, classes: Iterable[Any] = (), *, trust: bool = False) -> None:
        self.given = {f"{c.__module__}.{c.__qualname__}": c for c in classes}
        self.trust = trust
        self.nodes: dict[str, fx.Node] = {}

    def __call__(self, value: Any, own: Mapping[str, Any] | None = None) -> Any:
        if isinstance(value, list):
            return [self(v, own) for v in value]
        if not isinstance(value, dict):
            return value
        kind = next(iter(value), "")
        if not kind.startswith("$"):
            return {k: self(v, own) for k, v in value.items()}
        if kind == "$own":
            return (own or {})[value[kind]]
        decoder = getattr(self, f"_{kind[1:]}", None)
        if decoder is None:
            raise CheckpointError(f"unknown kind of value '{kind}'.")
        return decoder(value[kind])

    def _node(self, name: str) -> fx.Node:
        if name not in self.nodes:
            raise CheckpointError(f"node '{name}' is used before it is made.")
        return self.nodes[name]

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(self(v) for v in items)

    def _set(self, items: list[Any]) -> set[Any]:
        return {self(v) for v in items}

    def _dict(self, pairs: list[Any]) -> dict[Any, Any]:
        return {self(k): self(v) for k, v in pairs}

    def _slice(self, parts: list[Any]) -> slice:
        return slice(*(self(p) for p in parts))

    def _range(self, parts: list[int]) -> range:
        return range(*parts)

    def _float(self, text: str) -> float:
        return float(text)

    def _complex(self, parts: list[float]) -> complex:
        return complex(*parts)

    def _ellipsis(self, _: bool) -> Any:
        return ...

    def _device(self, text: str) -> torch.device:
        return torch.device(text)

    def _torch(self, name: str) -> Any:
        found = getattr(torch, name, None)
        if not isinstance(found, torch.dtype | torch.memory_format | torch.layout):
            raise CheckpointError(f"'torch.{name}' is not a dtype, layout or memory format.")
        return found

    def _quantizer(self, pair: list[Any]) -> Quantizer:
        name, fields = pair
        return FORMATS[name](**{k: self(v) for k, v in fields.items()})

    def _record(self, pair: list[Any]) -> Any:
        name, fields = pair
        if name not in _RECORDS:
            raise CheckpointError(f"unknown metadata record '{name}'.")
        return _RECORDS[name](**{k: self(v) for k, v in fields.items()})

    def _function(self, name: str) -> Any:
        return self.function(name)

    def cls(self, name: str, of: type) -> Any:
        """The class `name`, which must be a subclass of `of`."""
        if name in self.given:
            return self.given[name]
        if not self.trust and not name.startswith(_SAFE_CLASSES):
            raise CheckpointError(
                f"class '{name}' is not one of torch or MASE. If you trust it, hand it in: "
                "MaseGraph.from_checkpoint(path, classes=[…])."
            )
        found = _look_up(name)
        if not isinstance(found, type) or not issubclass(found, of):
            raise CheckpointError(f"'{name}' is not a {of.__name__}.")
        if not self.trust and not found.__module__.startswith(_SAFE_CLASSES):
            raise CheckpointError(f"class '{name}' is one of {found.__module__}, not of its name.")
        return found

    def function(self, name: str) -> Any:
        """The function `name`, which must be an operation on tensors."""
        if name in self.given:
            return self.given[name]
        if name.removesuffix(".apply") in self.given:
            return applied(self.given[name.removesuffix(".apply")].apply)
        is_allowed = self.trust or _may_be_looked_up(name)
        found = _look_up(name) if is_allowed else None
        if not is_allowed or not (self.trust or _is_safe_function(name, found)):
            raise CheckpointError(f"function '{name}' is not an operation a graph may call.")
        if not callable(found):
            raise CheckpointError(f"'{name}' is not a function.")
        return applied(found)


def _may_be_looked_up(name: str) -> bool:
    """By the name alone, because looking it up may import its module."""
    owner, _, leaf = name.rpartition(".")
    if owner == "torch":  # torch.load, torch.compile and the like are no builtins
        is_builtin = hasattr(torch._C._VariableFunctions, leaf)
        is_safe = is_builtin and leaf not in _UNSAFE_TENSOR_FUNCTIONS
        return is_safe or name in ("torch.tensor", "torch.einsum")
    if owner in ("operator", "_operator"):
        return leaf.strip("_") not in _UNSAFE_OPERATORS
    if owner == "builtins":
        return leaf in _SAFE_BUILTINS
    return owner in _SAFE_MODULES or name.startswith(("chop.", "transformers."))


def _is_safe_function(name: str, found: Any) -> bool:
    """By what was found: a module holds others as well, and those hold anything."""
    owner, _, leaf = name.rpartition(".")
    if owner in _SAFE_MODULES:
        return (getattr(found, "__module__", None) or owner) in _SAFE_MODULES
    if name.startswith("chop."):  # an op of the table
        return name in _RECIPES or (_comes_from(found, "chop.") and hasattr(found, "op"))
    if name.startswith("transformers."):  # a custom autograd function
        of = getattr(found, "__self__", None)
        is_function = isinstance(of, type) and issubclass(of, torch.autograd.Function)
        return leaf == "apply" and is_function and _comes_from(of, "transformers.")
    return True


def _comes_from(found: Any, package: str) -> bool:
    return str(getattr(found, "__module__", "")).startswith(package)


def function_name(function: Any) -> str:
    """The dotted name under which `function` can be found again."""
    if isinstance(function, AppliedFunction):
        return function.stored_name()
    name = _get_qualified_name(function)
    name = name.replace("_operator.", "operator.")
    return name if "." in name else f"builtins.{name}"


def _look_up(name: str) -> Any:
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for part in parts[split:]:
            found = getattr(found, part, None)
        if found is not None:
            return found
    raise CheckpointError(f"'{name}' does not exist in the installed packages.")


def decode_graph(records: list[dict[str, Any]], decode: Decoder) -> fx.Graph:
    """The fx graph of a list of node records."""
    graph = fx.Graph()
    for record in records:
        op, target = record["op"], record["target"]
        if op == "call_function":
            target = decode.function(target)
        if op == "call_method" and (target.startswith("__") or not hasattr(torch.Tensor, target)):
            raise CheckpointError(f"'{target}' is not a method of a tensor a graph may call.")
        args, kwargs = decode(record["args"]), decode(record["kwargs"])
        if target is getattr and (not isinstance(args[1], str) or args[1].startswith("_")):
            raise CheckpointError(f"'{args[1]}' is not an attribute a graph may read.")
        node = graph.create_node(op, target, args, kwargs, name=record["name"])
        decode.nodes[record["name"]] = node
    for record in records:  # metadata may point forward
        if "mase" in record:
            decode.nodes[record["name"]].meta["mase"] = decode(record["mase"])
    return graph
