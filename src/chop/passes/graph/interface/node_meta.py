"""Metadata of nodes as TOML, for people and other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from chop.config import dump_toml, load_toml
from chop.errors import PassError
from chop.files import make_folder
from chop.ir.graph import MaseGraph
from chop.ir.meta import KeyedRecord, MaseMetadata, ValueMeta, mase_meta
from chop.passes.base import PassResult, graph_pass

ROOTS = ("common", "software", "hardware")


@dataclass(frozen=True)
class SaveNodeMetaArgs:
    """Settings of `save_node_meta_param_interface_pass`. `save_path`: the file to write."""

    save_path: Path

    @staticmethod
    def modern(args: Any) -> Any:
        """Accept a path instead of the mapping."""
        return {"save_path": args} if isinstance(args, str | Path) else args


@dataclass(frozen=True)
class LoadNodeMetaArgs:
    """Settings of `load_node_meta_param_interface_pass`. `load_path`: the file to read."""

    load_path: Path

    @staticmethod
    def modern(args: Any) -> Any:
        """Accept a path instead of the mapping."""
        return {"load_path": args} if isinstance(args, str | Path) else args


@graph_pass("save_node_meta_param_interface_pass", SaveNodeMetaArgs, needs=("init",))
def save_node_meta_param_interface_pass(graph: MaseGraph, args: SaveNodeMetaArgs) -> PassResult:
    """Write the metadata of every node to a TOML file, a table for each node.

    Small tensors, such as statistics, become lists; values of more than 64 elements are left out.
    """
    nodes = {n.name: _plain(mase_meta(n)) for n in graph.fx_graph.nodes}
    make_folder(args.save_path.parent)
    args.save_path.write_text(dump_toml(nodes))
    return graph, {"path": args.save_path, "nodes": len(nodes)}


@graph_pass("load_node_meta_param_interface_pass", LoadNodeMetaArgs)
def load_node_meta_param_interface_pass(graph: MaseGraph, args: LoadNodeMetaArgs) -> PassResult:
    """Read the metadata of nodes from a file of `save_node_meta_param_interface_pass`."""
    stored = load_toml(args.load_path)
    nodes = {node.name: node for node in graph.fx_graph.nodes}
    for name in (*nodes, *stored):
        if name not in nodes or name not in stored:
            has = "the graph has no such node" if name not in nodes else "it has no such table"
            raise PassError(f"{args.load_path}: not of this graph: '{name}': {has}.")
    loaded = {name: _metadata(stored[name], nodes, str(args.load_path)) for name in nodes}
    for name, node in nodes.items():
        node.meta["mase"] = loaded[name]
    return graph, {"path": args.load_path, "nodes": len(nodes)}


MOST_ELEMENTS = 64
"""Elements of the largest tensor that is written: statistics have fewer, values more."""


def _plain(value: Any) -> Any:
    if isinstance(value, KeyedRecord | Mapping):
        items = {str(key): _plain(each) for key, each in value.items()}
        return {key: each for key, each in items.items() if each is not None}
    if isinstance(value, Tensor):
        return value.tolist() if value.numel() <= MOST_ELEMENTS else None
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, fx.Node):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _metadata(table: Any, nodes: Mapping[str, fx.Node], where: str) -> MaseMetadata:
    meta = MaseMetadata()
    if not isinstance(table, Mapping) or not set(table) <= set(ROOTS):
        raise PassError(f"{where}: a node's table has {', '.join(ROOTS)} and nothing else.")
    for root, fields in table.items():
        meta[root].update(fields)
    for branch in ("args", "results"):
        values = getattr(meta.common, branch)
        if values is not None:
            named = {name: _value(each, nodes, where) for name, each in values.items()}
            setattr(meta.common, branch, named)
    return meta


def _value(fields: Mapping[str, Any], nodes: Mapping[str, fx.Node], where: str) -> ValueMeta:
    value = ValueMeta()
    value.update(fields)
    if isinstance(value.torch_dtype, str):
        dtype = getattr(torch, value.torch_dtype.removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype):
            raise PassError(f"{where}: '{value.torch_dtype}' is no dtype of torch.")
        value.torch_dtype = dtype
    if isinstance(value.device, str):
        value.device = torch.device(value.device)
    if value.source is not None:
        value.source = nodes.get(str(value.source))
    return value
