"""Linear layers that a model writes as a product with a parameter, as linear modules."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph
from chop.passes.graph.transforms.surgery import set_module


def lift_products(graph: MaseGraph) -> list[str]:
    """Turn `addmm(bias, x, weight)` with parameters of one owner into an `nn.Linear` in the place
    of that owner; the paths. Some libraries write their linear layers so.
    """
    lifted = []
    for node in list(graph.fx_graph.nodes):
        owner = _owner(graph, node)
        if owner is not None:
            lifted.append(owner)
            _lift(graph, node, owner)
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
    old = graph.model.get_submodule(owner)
    weight, bias = old.get_parameter("weight"), old.get_parameter("bias")
    set_module(graph, owner, _linear(weight, bias, old.training))
    with graph.fx_graph.inserting_before(node):
        new = graph.fx_graph.call_module(owner, (node.args[1],))
    node.replace_all_uses_with(new)
    parameters = [node.args[0], node.args[2]]
    graph.fx_graph.erase_node(node)
    for part in parameters:
        graph.fx_graph.erase_node(part)  # type: ignore[arg-type]


def _linear(weight: Tensor, bias: nn.Parameter, training: bool) -> nn.Linear:
    new = nn.Linear(1, 1, device="meta")
    new.in_features, new.out_features = weight.shape
    new.weight = nn.Parameter(weight.detach().t().contiguous(), weight.requires_grad)
    new.bias = bias
    return new.train(training)
