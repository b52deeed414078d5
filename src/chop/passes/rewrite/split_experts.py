"""Experts of a mixture as linear layers, one for each expert.

Passes then treat an expert as any other layer: it can have another format than the others, is
calibrated on its inputs, and is packed and exported as a matrix. The rows of an expert are a slice
of the sorted rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from chop.ir.expert_layer import Experts, expert_rows
from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.lift_layers import expert_products, put_module
from chop.passes.rewrite.surgery import bypass, set_module


def split_experts(
    graph: MaseGraph, is_chosen: Callable[[str, int], bool] = lambda path, experts: True
) -> dict[str, list[str]]:
    """Replace products with the weights of all experts by a linear layer for each expert.

    `is_chosen(path, experts)` chooses by the path of the stacked weights and their number. Return
    the paths of the new layers by this path: `model.layers.0.mlp.experts.gate_up_proj.3`. The
    layers compute the same products on the same memory. Nothing else reads these weights.
    """
    stacks = [s for s in _stacks(graph) if is_chosen(s.path, len(s.matrices))]
    for stack in stacks:
        _split(graph, stack)
    if stacks:
        graph.recompile()
        refresh(graph)
    return {s.path: [f"{s.path}.{e}" for e in range(len(s.matrices))] for s in stacks}


@dataclass(frozen=True)
class _Stack:
    """Product with stacked weights; `matrices` are (outputs, inputs) of each expert."""

    node: fx.Node
    path: str
    matrices: Sequence[Tensor]
    trains: bool


def _stacks(graph: MaseGraph) -> Iterator[_Stack]:
    for node, path, is_turned in expert_products(graph):
        parameter = graph.model.get_parameter(path)
        matrices = parameter.detach().mT if is_turned else parameter.detach()
        yield _Stack(node, path, matrices.unbind(), parameter.requires_grad)
    for node in list(graph.fx_graph.nodes):
        layer = node_module(node) if node.op == "call_module" else None
        if type(layer) is Experts:
            matrices = layer.weight.detach().view(layer.experts, layer.out_features, -1)
            trains = layer.weight.requires_grad
            yield _Stack(node, str(node.target), matrices.unbind(), trains)


def _split(graph: MaseGraph, stack: _Stack) -> None:
    node, path = stack.node, stack.path
    layers = nn.ModuleList([_linear(matrix, stack.trains) for matrix in stack.matrices])
    layers.train(graph.model.training)
    if node.op == "call_module":
        set_module(graph, path, layers)
    else:
        put_module(graph, path, layers)
    x, ends = node.args[0], _ends(node)
    with graph.fx_graph.inserting_before(node):
        results = []
        for expert in range(len(layers)):
            rows = graph.fx_graph.call_function(expert_rows, (x, ends, expert))
            results.append(graph.fx_graph.call_module(f"{path}.{expert}", (rows,)))
        joined = graph.fx_graph.call_function(torch.cat, (results,))
    weight = node.args[1]
    bypass(node, joined)
    while isinstance(weight, fx.Node) and weight is not ends and not weight.users:
        below = weight.args[0] if weight.args else None
        graph.fx_graph.erase_node(weight)
        weight = below


def _ends(node: fx.Node) -> fx.Node:
    """Return the operand of a product that has the end of each expert's rows."""
    ends = node.args[1] if node.op == "call_module" else node.kwargs.get("offs")
    ends = node.args[2] if ends is None else ends
    assert isinstance(ends, fx.Node), f"{node.name} has no ends"
    return ends


def _linear(matrix: Tensor, trains: bool) -> nn.Linear:
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(matrix, trains)
    return layer


def is_expert(node: fx.Node) -> bool:
    """Return True if `node` calls the layer of one expert."""
    rows = node.args[0] if node.op == "call_module" and node.args else None
    return isinstance(rows, fx.Node) and rows.target is expert_rows


@dataclass(frozen=True)
class ExpertCall:
    """Place of an expert's layer in a graph: `x` and `ends` are the operands of its `expert_rows`.

    `source`: the rows that the first layers of the same experts read, if `x` is computed from their
    results. `between`: the nodes from there to `x`, in order.
    """

    expert: int
    x: fx.Node
    ends: fx.Node
    source: fx.Node | None = None
    between: tuple[fx.Node, ...] = ()

    @property
    def inputs(self) -> set[fx.Node]:
        """The values that `between` is computed from."""
        return {n for node in self.between for n in node.all_input_nodes} - {*self.between}


def expert_calls(graph: MaseGraph) -> dict[fx.Node, ExpertCall]:
    """Return the place of every expert's layer by the node that calls it."""
    calls: dict[fx.Node, ExpertCall] = {}
    chains: dict[tuple[fx.Node, fx.Node], tuple[fx.Node | None, tuple[fx.Node, ...]]] = {}
    for node in graph.fx_graph.nodes:
        if not is_expert(node):
            continue
        x, ends, expert = node.args[0].args
        assert isinstance(x, fx.Node) and isinstance(ends, fx.Node) and isinstance(expert, int)
        if (x, ends) not in chains:
            chains[x, ends] = _chain(x, ends)
        calls[node] = ExpertCall(expert, x, ends, *chains[x, ends])
    return calls


def _chain(x: fx.Node, ends: fx.Node) -> tuple[fx.Node | None, tuple[fx.Node, ...]]:
    """Return the rows that `x` is computed from by layers of the same experts, and the nodes."""
    below = _below(x)
    sources = (n.args[0] for n in ends.users if n.target is expert_rows and n in below)
    source = next(sources, None)
    if not isinstance(source, fx.Node):
        return None, ()
    inside, chain = {source}, []
    for node in source.graph.nodes:
        if node is x or (node in below and node is not source):
            if inside.isdisjoint(node.all_input_nodes):
                continue
            inside.add(node)
            chain.append(node)
    return source, tuple(chain)


def _below(node: fx.Node) -> set[fx.Node]:
    """Return all nodes that `node` is computed from."""
    below: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        for operand in waiting.pop().all_input_nodes:
            if operand not in below:
                below.add(operand)
                waiting.append(operand)
    return below
