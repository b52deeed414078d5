"""Removal of the experts of a mixture that the router chooses least."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.trace.environment import evaluation_mode
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.lift_layers import expert_products
from chop.passes.rewrite.propagate import bind_inputs

COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Keys of a config of transformers that count the experts of a layer."""


@dataclass(frozen=True)
class ExpertGroup:
    """The experts of one layer.

    `path`: path of the module that has them. `stacks`: paths of their stacked weights. `routers`:
    paths of the parameters with a row for each expert. `ends`: node of the end of each expert's
    rows. `count`: the node that counts them. `size`: number of experts.
    """

    path: str
    stacks: tuple[str, ...]
    routers: tuple[str, ...]
    ends: fx.Node
    count: fx.Node
    size: int


def expert_groups(graph: MaseGraph) -> list[ExpertGroup]:
    """Return the experts of each layer; raise ConfigError if there are none, or no plain router."""
    stacks: dict[fx.Node, list[str]] = {}
    for node, path, _ in expert_products(graph):
        ends = node.kwargs.get("offs", node.args[2] if len(node.args) > 2 else None)
        if isinstance(ends, fx.Node):
            stacks.setdefault(ends, []).append(path)
    if not stacks:
        raise ConfigError(
            "prune.experts: the model has no experts as stacked floats. Allowed: a mixture of "
            "experts of transformers that is neither quantised nor packed."
        )
    return [_group(graph, ends, paths) for ends, paths in stacks.items()]


def _group(graph: MaseGraph, ends: fx.Node, stacks: list[str]) -> ExpertGroup:
    size, path = graph.model.get_parameter(stacks[0]).shape[0], stacks[0].rpartition(".")[0]
    around, below = f"{path.rpartition('.')[0]}.", _below(ends)
    routers = [
        str(node.target)
        for node in graph.fx_graph.nodes
        if node in below and node.op == "get_attr" and str(node.target).startswith(around)
        if _value(graph, node).shape[:1] == (size,)
    ]
    counts = [n for n in ends.all_input_nodes if n.target is torch.histc]
    if not routers or len(counts) != 1:
        raise ConfigError(
            f"prune.experts: '{path}' has no router with a row for each expert. Allowed: models "
            "whose router is one product, as in Mixtral, Qwen2-MoE and Qwen3-MoE."
        )
    return ExpertGroup(path, tuple(stacks), tuple(dict.fromkeys(routers)), ends, counts[0], size)


def _value(graph: MaseGraph, node: fx.Node) -> Tensor:
    owner, _, name = str(node.target).rpartition(".")
    value: Tensor = getattr(graph.model.get_submodule(owner), name)
    return value


def _below(node: fx.Node) -> set[fx.Node]:
    """Return all nodes that `node` is computed from."""
    below: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        new = [n for n in waiting.pop().all_input_nodes if n not in below]
        below.update(new)
        waiting.extend(new)
    return below


def routed_tokens(
    graph: MaseGraph, groups: Iterable[ExpertGroup], batches: Iterable[Any]
) -> dict[str, Tensor]:
    """Return how many tokens the router sends to each expert, by the path of the experts."""
    run = _EndsOfRows(graph.model, {group.ends: group.path for group in groups})
    with evaluation_mode(graph.model), torch.no_grad():
        for batch in batches:
            run.run(*bind_inputs(graph, batch, "prune.batches").values())
    return run.tokens


class _EndsOfRows(fx.Interpreter):
    """Run of a graph that counts the rows of each expert."""

    def __init__(self, model: fx.GraphModule, paths: dict[fx.Node, str]) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.paths = paths
        self.tokens: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n in self.paths:
            rows = result.diff(prepend=result.new_zeros(1)).long().cpu()
            path = self.paths[n]
            self.tokens[path] = self.tokens.get(path, 0) + rows
        return result


def remove_experts(graph: MaseGraph, remaining: dict[str, list[int]]) -> None:
    """Keep only these experts of each layer, by the path of the experts.

    The router chooses among the rest; the other layers stay unchanged, and so does the model that
    the graph was captured from.
    """
    for group in expert_groups(graph):
        index = torch.tensor(remaining[group.path])
        for path in (*group.stacks, *group.routers):
            _keep_rows(graph, path, index)
        options: dict[str, Any] = {"bins": len(index), "min": 0, "max": len(index) - 1}
        group.count.args, group.count.kwargs = group.count.args[:1], options
    config = getattr(graph.model, "config", None)
    sizes = {len(own) for own in remaining.values()}
    if config is not None and len(sizes) == 1:
        config = copy.deepcopy(config)
        for name in COUNTS:
            if hasattr(config, name):
                setattr(config, name, next(iter(sizes)))
        graph.model.config = config
    graph.recompile()
    refresh(graph)


def _keep_rows(graph: MaseGraph, path: str, index: Tensor) -> None:
    parent, _, name = path.rpartition(".")
    owner = graph.model.get_submodule(parent)
    old = getattr(owner, name)
    rows = old.detach()[index.to(old.device)].clone()
    if name in owner._parameters:
        owner._parameters[name] = nn.Parameter(rows, old.requires_grad)
    else:
        owner._buffers[name] = rows
