"""Names of the tensors at the root of a model in an ONNX file.

In an ONNX file, inputs, results of nodes and tensors share one set of names, and the exporter names
results after functions. A buffer `x` of the model would be the input `x` of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from chop.ir.graph import MaseGraph

ROOT = "root_tensors"
"""Module for the tensors at the root during the export."""


def move_root_tensors(graph: MaseGraph) -> str:
    """Move the parameters and buffers at the root of a model into a module; return its name."""
    root = ROOT
    while hasattr(graph.model, root):
        root += "_"
    reads = [n for n in graph.fx_graph.nodes if n.op == "get_attr" and "." not in str(n.target)]
    tensors = {**graph.model._parameters, **graph.model._buffers}
    names = {str(n.target) for n in reads} & tensors.keys()
    if not names:
        return root
    holder = nn.Module()
    for name in sorted(names):
        tensor = tensors[name]
        if isinstance(tensor, nn.Parameter):
            holder.register_parameter(name, tensor)
        else:
            holder.register_buffer(name, tensor)
        delattr(graph.model, name)
    graph.model.add_module(root, holder)
    for node in reads:
        if node.target in names:
            node.target = f"{root}.{node.target}"
    graph.recompile()
    return root


def restore_root_names(proto: Any, root: str) -> None:
    """Give the tensors in the module `root` their own names where no other value has them."""
    prefix = f"{root}."
    moved = [t.name for t in proto.graph.initializer if t.name.startswith(prefix)]
    used = {value.name for value in proto.graph.input}
    used |= {t.name for t in proto.graph.initializer}
    used |= {name for node in _nodes(proto.graph) for name in node.output}
    names = {name: name.removeprefix(prefix) for name in moved}
    names = {old: new for old, new in names.items() if new not in used}
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in _nodes(proto.graph):
        node.input[:] = [names.get(name, name) for name in node.input]
    for value in (*proto.graph.value_info, *proto.graph.output):
        value.name = names.get(value.name, value.name)


def _nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _nodes(inner)
