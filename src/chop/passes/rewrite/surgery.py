"""Changes to a graph that transforms share: attach, replace and drop modules and constants."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph


def set_module(graph: MaseGraph, target: str, module: nn.Module) -> None:
    """Put `module` at the path `target` of the graph's model.

    The model's containers are its own, so a module shared with the user's model is not touched.
    """
    parent, _, name = target.rpartition(".")
    setattr(graph.model.get_submodule(parent), name, module)


def drop_unused_modules(graph: MaseGraph, targets: Iterable[str]) -> list[str]:
    """Delete those modules of `targets` that no node needs any more; their paths."""
    needed = [str(n.target) for n in graph.fx_graph.nodes if n.op in ("call_module", "get_attr")]
    unused = [t for t in dict.fromkeys(targets) if not any(_touches(t, n) for n in needed)]
    for target in unused:
        graph.model.delete_submodule(target)
    return unused


def _touches(target: str, needed: str) -> bool:
    """Whether one path is the other, or lies within it."""
    return target == needed or needed.startswith(f"{target}.") or target.startswith(f"{needed}.")


def add_constant(graph: MaseGraph, name: str, value: Tensor) -> str:
    """Register `value` as a buffer of the model under a free name like `name`; that name."""
    free, i = name, 0
    while hasattr(graph.model, free):
        free, i = f"{name}_{i}", i + 1
    graph.model.register_buffer(free, value)
    return free


def bypass(node: fx.Node, source: fx.Node) -> None:
    """Let `source` stand for `node`, and erase `node`."""
    node.replace_all_uses_with(source)
    node.graph.erase_node(node)
