"""Updates of a graph's weights; the model that the graph was captured from keeps its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph
from chop.ir.reclass import reclassed
from chop.log import get_logger
from chop.passes.ptq.sites.channel_flow import Change, RefusedError, Trail
from chop.passes.rewrite.surgery import set_module

logger = get_logger(__name__)


def check_calls(graph: MaseGraph, trail: Trail) -> None:
    """Raise if a module that would change is also called where it must not."""
    roles: dict[str, set[tuple[bool, bool]]] = {}
    for node in graph.fx_graph.nodes:
        if node.op == "call_module":
            role = (node in trail.writers, node in trail.readers)
            roles.setdefault(str(node.target), set()).add(role)
    for target, kinds in roles.items():
        if len(kinds) > 1:
            raise RefusedError(f"module '{target}' is called in several places, not all alike")


def apply_change(graph: MaseGraph, change: Change, trail: Trail, who: str) -> None:
    """Fold a change into the layers that write it and the layers that read it."""
    check_calls(graph, trail)
    shared = shared_parameters(graph)
    for target in dict.fromkeys(str(n.target) for n in trail.readers):
        layer = own_layer(graph, target, shared, who)
        layer.weight = _changed(layer.weight, change, 1)
    for node in {str(n.target): n for n in trail.writers}.values():
        if node.op == "get_attr":
            _write_parameter(graph, node, change)
            continue
        layer = own_layer(graph, str(node.target), shared, who)
        rows = 1 if isinstance(layer, nn.Embedding) else 0
        layer.weight = _changed(layer.weight, change, rows)
        if getattr(layer, "bias", None) is not None:
            layer.bias = _changed(layer.bias, change, 0)


def _write_parameter(graph: MaseGraph, node: fx.Node, change: Change) -> None:
    parent, _, name = str(node.target).rpartition(".")
    owner = graph.model.get_submodule(parent)
    old = getattr(owner, name)
    new = change(old.detach(), old.dim() - 1)
    if isinstance(old, nn.Parameter):
        setattr(owner, name, nn.Parameter(new, requires_grad=old.requires_grad))
    else:
        owner.register_buffer(name, new)


def own_layer(graph: MaseGraph, target: str, shared: dict[int, list[str]], who: str) -> Any:
    """Replace the layer at `target` by a copy whose tensors can be replaced; return the copy.

    Warn in the name of `who` of a weight that was shared; an empty `who` warns of nothing.
    """
    old = graph.model.get_submodule(target)
    name = f"{target}.weight"
    others = [n for n in shared.get(id(old._parameters.get("weight")), []) if n != name]
    if others and who:
        logger.warning("%s: '%s' is no longer shared with '%s'.", who, name, others[0])
    copy = reclassed(old, type(old))
    set_module(graph, target, copy)
    return copy


def shared_parameters(graph: MaseGraph) -> dict[int, list[str]]:
    """Return the names of each parameter that has several, by the parameter's id."""
    names: dict[int, list[str]] = {}
    for name, parameter in graph.model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {key: several for key, several in names.items() if len(several) > 1}


def _changed(old: Tensor, change: Change, dim: int) -> nn.Parameter:
    return nn.Parameter(change(old.detach(), dim), requires_grad=old.requires_grad)


def add_to_bias(layer: Any, value: Tensor) -> None:
    """Add to the bias of a layer; create one if it has none."""
    weight: Tensor = layer.weight
    old = getattr(layer, "bias", None)
    base = torch.zeros(len(value), dtype=torch.double) if old is None else old.detach().double()
    new = (base.to(value) + value).to(weight.dtype)
    trains = weight.requires_grad if old is None else old.requires_grad
    layer.bias = nn.Parameter(new, requires_grad=trains)
