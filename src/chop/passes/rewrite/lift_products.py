"""Linear layers that a model writes as a product with a parameter, as linear modules."""

from __future__ import annotations

from collections import Counter

import torch
from torch import fx

from chop.ir.graph import MaseGraph
from chop.nn.modules.transposed import as_linear
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.surgery import set_module


def lift_products(graph: MaseGraph) -> list[str]:
    """Turn `addmm(bias, x, weight)` with parameters of one owner into an `nn.Linear` in the place
    of that owner; the paths. GPT-2 and its kin write their linear layers so (`Conv1D`).

    The layer computes the same product, bit for bit, on the same memory; its weight is a parameter
    of its own, the transpose. A weight that another module has too is left alone.
    """
    owned = Counter(id(p) for _, p in graph.model.named_parameters(remove_duplicate=False))
    lifted = []
    for node in list(graph.fx_graph.nodes):
        owner = _owner(graph, node)
        if owner is not None and owned[id(graph.model.get_parameter(f"{owner}.weight"))] == 1:
            lifted.append(owner)
            _lift(graph, node, owner)
    if lifted:
        graph.recompile()
        refresh(graph)
    return lifted


def _owner(graph: MaseGraph, node: fx.Node) -> str | None:
    """The module whose `weight` and `bias` a product reads, where nothing else reads them."""
    if node.target is not torch.addmm or len(node.args) != 3 or node.kwargs:
        return None
    bias, _, weight = node.args
    for part, leaf in ((bias, "bias"), (weight, "weight")):
        is_parameter = isinstance(part, fx.Node) and part.op == "get_attr" and len(part.users) == 1
        if not is_parameter or str(part.target).rpartition(".")[2] != leaf:  # type: ignore[union-attr]
            return None
    owners = {str(part.target).rpartition(".")[0] for part in (bias, weight)}  # type: ignore[union-attr]
    if len(owners) != 1:
        return None
    (owner,) = owners
    return owner if owner and _has_nothing_else(graph, owner) else None


def _has_nothing_else(graph: MaseGraph, owner: str) -> bool:
    module = graph.model.get_submodule(owner)
    names = {name for name, _ in module.named_parameters()}
    return names == {"weight", "bias"} and not any(True for _ in module.buffers())


def _lift(graph: MaseGraph, node: fx.Node, owner: str) -> None:
    set_module(graph, owner, as_linear(graph.model.get_submodule(owner)))
    with graph.fx_graph.inserting_before(node):
        new = graph.fx_graph.call_module(owner, (node.args[1],))
    node.replace_all_uses_with(new)
    parameters = [node.args[0], node.args[2]]
    graph.fx_graph.erase_node(node)
    for part in parameters:
        graph.fx_graph.erase_node(part)  # type: ignore[arg-type]
