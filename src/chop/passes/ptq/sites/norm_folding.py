"""Scales and shifts of normalisation, folded into the layers that read its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op, node_module
from chop.passes.ptq.sites.channel_flow import (
    ExampleRun,
    RefusedError,
    Trail,
    follow,
    is_same,
    scaling,
)
from chop.passes.ptq.sites.weight_updates import (
    add_to_bias,
    apply_change,
    check_calls,
    own_layer,
    shared_parameters,
)
from chop.passes.rewrite.surgery import bypass, set_module


@dataclass
class Norm:
    """A node that scales what has been normalised, along its last dimension.

    It calls a layer, or is a product with a parameter behind a normalisation written out.
    `operand` is what it is given.
    """

    node: fx.Node
    operand: fx.Node
    scale: Tensor
    shift: Tensor | None = None

    @property
    def size(self) -> int:
        """Elements of the last dimension."""
        return len(self.scale)

    @property
    def is_layer(self) -> bool:
        """Whether the node calls a layer that also normalises."""
        return self.node.op == "call_module"


def find_norms(run: ExampleRun) -> Iterator[Norm]:
    """Every norm of a graph that has a scale."""
    constant = _constants(run.nodes)
    for node in run.nodes:
        op = None if node.op == "output" else find_op(node)
        if op is None:
            continue
        if node.op == "call_module" and op.dims == "norm_last":
            layer: Any = node_module(node)
            if layer.weight is not None and layer.weight.dim() == 1:
                operand = node.all_input_nodes[0]
                yield Norm(node, operand, layer.weight.detach(), _shift(layer))
        elif op.name == "mul":
            yield from _product(run, node, constant)


def _shift(layer: nn.Module) -> Tensor | None:
    bias = getattr(layer, "bias", None)
    return None if bias is None else bias.detach()


def _constants(nodes: list[fx.Node]) -> set[fx.Node]:
    """Nodes that depend on parameters and numbers alone."""
    found: set[fx.Node] = set()
    for node in nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr" or (inputs and all(n in found for n in inputs)):
            found.add(node)
    return found


def _product(run: ExampleRun, node: fx.Node, constant: set[fx.Node]) -> Iterator[Norm]:
    if len(node.all_input_nodes) != 2:
        return
    scales = [n for n in node.all_input_nodes if n in constant]
    others = [n for n in node.all_input_nodes if n not in constant]
    if len(scales) != 1 or not isinstance(run.values[others[0]], Tensor):
        return
    scale, x = run.values[scales[0]], run.values[others[0]]
    fits = isinstance(scale, Tensor) and scale.dim() == 1 and scale.is_floating_point()
    if fits and x.dim() > 1 and x.shape[-1] == len(scale) > 1:
        yield Norm(node, others[0], scale.detach())


def readers_of(run: ExampleRun, norm: Norm) -> Trail:
    """The layers that can take a norm's scale; an error where others read it too."""
    graph = run.graph
    if norm.is_layer:
        calls = Counter(str(n.target) for n in run.nodes if n.op == "call_module")
        if calls[str(norm.node.target)] > 1:
            raise RefusedError(f"module '{norm.node.target}' is called several times")
    draw = torch.Generator().manual_seed(0)
    factors = 0.5 + torch.rand(norm.size, generator=draw, dtype=torch.double)
    last = run.values[norm.node].dim() - 1
    trail = follow(run, scaling(factors), {norm.node: last}, extend=False)
    check_calls(graph, Trail({}, trail.readers))
    return trail


def fold(graph: MaseGraph, norm: Norm, trail: Trail, who: str) -> None:
    """Let the readers have the scale and the shift, and the norm neither."""
    if norm.shift is not None:
        shared = shared_parameters(graph)
        for target in dict.fromkeys(str(n.target) for n in trail.readers):
            layer = own_layer(graph, target, shared, "")
            add_to_bias(layer, layer.weight.detach().double() @ norm.shift.double())
    apply_change(graph, scaling(norm.scale.double()), Trail({}, trail.readers), who)
    if norm.is_layer:
        old: Any = node_module(norm.node)
        new = type(old)(norm.size, eps=old.eps, elementwise_affine=False)
        set_module(graph, str(norm.node.target), new.train(old.training).to(norm.scale.device))
    else:
        bypass(norm.node, norm.operand)


def centres(norm: Norm) -> bool:
    """Whether a norm takes the mean away: then it does not see a number that is added."""
    if not norm.is_layer:
        return False
    layer = node_module(norm.node)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, norm.size, generator=draw).to(norm.scale)
    with torch.no_grad():
        return is_same(layer(x + 1), layer(x))


def without_mean(graph: MaseGraph, norm: Norm) -> None:
    """Replace a norm that centres by one that does not: what it is given is centred by now."""
    old: Any = node_module(norm.node)
    new = nn.RMSNorm(norm.size, eps=old.eps, elementwise_affine=False)
    set_module(graph, str(norm.node.target), new.train(old.training))
