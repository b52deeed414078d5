"""Changes of a graph that transforms share: attach, replace and drop modules and constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph

M = TypeVar("M", bound=nn.Module)


def set_module(graph: MaseGraph, target: str, module: nn.Module) -> None:
    """Set the module at the path `target` of the graph's model.

    The model's containers belong to the graph, so the user's model stays unchanged.
    """
    parent, _, name = target.rpartition(".")
    setattr(graph.model.get_submodule(parent), name, module)


def drop_unused_modules(graph: MaseGraph, targets: Iterable[str]) -> list[str]:
    """Delete those modules of `targets` that no node needs any more; return their paths."""
    needed = [f"{n.target}." for n in graph.fx_graph.nodes if n.op in ("call_module", "get_attr")]
    unused = [
        target
        for target in dict.fromkeys(targets)
        if not any(n.startswith(f"{target}.") or f"{target}.".startswith(n) for n in needed)
    ]
    for target in unused:
        graph.model.delete_submodule(target)
    return unused


def add_constant(graph: MaseGraph, name: str, value: Tensor) -> str:
    """Register `value` as a buffer of the model under a free name like `name`; return it."""
    free, i = name, 0
    while hasattr(graph.model, free):
        free, i = f"{name}_{i}", i + 1
    graph.model.register_buffer(free, value)
    return free


def replace_modules(
    graph: MaseGraph, layers: Mapping[str, nn.Module], make: Callable[[str, nn.Module], M]
) -> list[M]:
    """Replace the modules at these paths by `make(path, module)`; return the new modules.

    A module at several paths is replaced by one new module.
    """
    new: dict[int, M] = {}
    for path, layer in layers.items():
        if id(layer) not in new:
            new[id(layer)] = make(path, layer)
        set_module(graph, path, new[id(layer)])
    return list(new.values())


def replace_by_module(graph: MaseGraph, node: fx.Node, path: str, args: tuple[Any, ...]) -> fx.Node:
    """Replace `node` by a call of the module at `path`; return the call."""
    with graph.fx_graph.inserting_before(node):
        call = graph.fx_graph.call_module(path, args)
    bypass(node, call)
    return call


def bypass(node: fx.Node, source: fx.Node) -> None:
    """Replace all uses of `node` by `source`, and erase `node`."""
    node.replace_all_uses_with(source)
    node.graph.erase_node(node)
