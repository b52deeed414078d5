"""Decoding of a graph's nodes: only names that generated source may contain."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from chop.errors import CheckpointError
from chop.files import shown
from chop.ir.store import vocabulary
from chop.ir.store.codec import ARGUMENTS, METADATA, Decoder

OPS = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")
_KEYS = {"name", "op", "target", "args", "kwargs"}
_OPTIONAL_KEYS = {"mase", "owner"}
_PYTHON = ("operator", "math", "builtins")


def decode_graph(
    records: Any,
    decode: Decoder,
    modules: Collection[str] | None = None,
    attributes: Collection[str] | None = None,
) -> fx.Graph:
    """Return the fx graph of node records, which may name only `modules` and `attributes`."""
    graph = fx.Graph()
    check = None if decode.trust else _Checks(records, modules or (), attributes or ())
    for index, record in enumerate(records):
        where = f"nodes[{index}]" if check is None else check.record(index, record)
        target = record["target"]
        if record["op"] == "call_function":
            target = decode.function(target, f"{where}.target")
        args = decode(record["args"], f"{where}.args", ARGUMENTS)
        kwargs = decode(record["kwargs"], f"{where}.kwargs", ARGUMENTS)
        if check is not None:
            check.arguments(where, record, target, args, kwargs)
        node = graph.create_node(record["op"], target, args, kwargs, name=record["name"])
        if check is not None and node.name != record["name"]:
            raise CheckpointError(f"{where}.name: '{record['name']}' is reserved or taken.")
        node.meta["owner"] = record.get("owner", "")
        decode.nodes[record["name"]] = node
    for index, record in enumerate(records):  # metadata may refer to later nodes
        if "mase" in record:
            where = f"nodes[{index}] ('{record['name']}').mase"
            decode.nodes[record["name"]].meta["mase"] = decode(record["mase"], where, METADATA)
    return graph


class _Checks:
    """Checks of each record, before and after its arguments are decoded."""

    def __init__(self, records: Any, modules: Collection[str], attributes: Collection[str]) -> None:
        if not isinstance(records, list) or not records:
            raise CheckpointError(f"nodes: expected a list of nodes, got {shown(records)}.")
        self.last = len(records) - 1
        names = [r.get("name") if isinstance(r, dict) else None for r in records]
        self.names = {name for name in names if isinstance(name, str)}
        self.checked: set[str] = set()
        self.inputs: set[str] = set()
        self.modules, self.attributes = modules, attributes

    def record(self, index: int, record: Any) -> str:
        """Check keys, name, op and target of a record; return its place."""
        where = f"nodes[{index}]"
        if not isinstance(record, dict) or not _KEYS <= record.keys() <= _KEYS | _OPTIONAL_KEYS:
            keys = ", ".join(sorted(_KEYS))
            raise CheckpointError(f"{where}: expected the keys {keys} and perhaps mase or owner.")
        name, op, target = record["name"], record["op"], record["target"]
        if not vocabulary.is_identifier(name) or name in self.checked:
            raise CheckpointError(f"{where}.name: {shown(name)} is no identifier, or there twice.")
        where = f"{where} ('{name}')"
        self.checked.add(name)
        if op not in OPS:
            raise CheckpointError(f"{where}.op: {shown(op)}. Allowed: {', '.join(OPS)}.")
        if (op == "output") != (index == self.last):
            raise CheckpointError(f"{where}.op: a graph has one output, and it is the last node.")
        if op != "call_function":
            self._target(where, name, op, target)
        owner = record.get("owner", "_")
        if not isinstance(owner, str) or not owner.isprintable():
            raise CheckpointError(f"{where}.owner: {shown(owner)} is not the path of a module.")
        return where

    def _target(self, where: str, name: str, op: str, target: Any) -> None:
        place = f"{where}.target"
        if not isinstance(target, str):
            raise CheckpointError(f"{place}: expected a name, got {shown(target)}.")
        if op == "output" and target != "output":
            raise CheckpointError(f"{place}: {shown(target)}. Allowed: output.")
        if op == "placeholder":
            self._input(place, name, target)
        if op == "call_method" and target not in vocabulary.methods():
            raise CheckpointError(
                f"{place}: {shown(target)} is not a method of a tensor a graph may call."
            )
        if op == "call_module" and target not in self.modules:
            raise CheckpointError(f"{place}: there is no module {shown(target)}.")
        if op == "get_attr" and target not in self.attributes:
            raise CheckpointError(f"{place}: there is no parameter or buffer {shown(target)}.")

    def _input(self, place: str, name: str, target: str) -> None:
        is_other = target != name and target in self.names
        if not vocabulary.is_input_name(target) or is_other or target in self.inputs:
            raise CheckpointError(f"{place}: {shown(target)} cannot be the name of an input.")
        if len(self.checked) > len(self.inputs) + 1:
            raise CheckpointError(f"{place}: inputs come before all other nodes.")
        self.inputs.add(target)

    def arguments(
        self, where: str, record: Mapping[str, Any], target: Any, args: Any, kwargs: Any
    ) -> None:
        """Check that the arguments fit the op."""
        if not isinstance(args, tuple) or not isinstance(kwargs, dict):
            raise CheckpointError(f"{where}.args: expected a tuple, and a mapping as kwargs.")
        for key in kwargs:
            if not vocabulary.is_identifier(key):
                raise CheckpointError(f"{where}.kwargs: {shown(key)} is not an identifier.")
        op = record["op"]
        counts = {"placeholder": (0, 1), "get_attr": (0,), "output": (1,)}.get(op)
        if counts is not None and (len(args) not in counts or kwargs):
            raise CheckpointError(f"{where}.args: a {op} has {counts[-1]} and no kwargs.")
        if op == "placeholder" and _nodes_in(args):
            raise CheckpointError(f"{where}.args: a default is no node.")
        if op == "call_method" and not (args and isinstance(args[0], fx.Node)):
            raise CheckpointError(f"{where}.args: a method is called on a node.")
        if target is getattr:
            _check_getattr(where, args, kwargs)
        elif op == "call_function":
            _check_python(where, record["target"], args, kwargs)


def _nodes_in(value: Any) -> bool:
    nodes: list[fx.Node] = []
    fx.node.map_arg(value, nodes.append)
    return bool(nodes)


def _check_getattr(where: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    is_plain = len(args) == 2 and not kwargs and isinstance(args[0], fx.Node)
    if not is_plain or not isinstance(args[1], str) or args[1] not in vocabulary.ATTRIBUTES:
        allowed = ", ".join(sorted(vocabulary.ATTRIBUTES))
        raise CheckpointError(
            f"{where}.args: {shown(args[1:])} is not an attribute a graph may read. "
            f"Allowed: {allowed}."
        )


def _check_python(where: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Check that Python's functions have numbers and nodes; text only as a key of getitem."""
    if name.rpartition(".")[0] not in _PYTHON:
        return
    if kwargs:
        raise CheckpointError(f"{where}.kwargs: '{name}' takes none.")
    if name == "operator.getitem" and (len(args) != 2 or not _nodes_in(args[0])):
        raise CheckpointError(f"{where}.args: '{name}' takes a node and a key.")
    texts = [a for a in args if isinstance(a, str)]
    is_key = name in ("operator.getitem", "operator.setitem") and texts == [args[1]] != []
    if texts and not (is_key and isinstance(args[0], fx.Node)):
        raise CheckpointError(f"{where}.args: '{name}' takes no text, got {shown(texts[0])}.")


def lint(model: fx.GraphModule) -> None:
    """Raise CheckpointError if fx finds the graph inconsistent."""
    try:
        model.graph.lint()
    except (RuntimeError, ValueError, AttributeError, torch.jit.Error) as error:
        raise CheckpointError(f"nodes: {error}") from error
