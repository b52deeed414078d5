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
    add_to_bias,
    apply_change,
    check_calls,
    follow,
    is_same,
    own_layer,
    scaling,
    shared_parameters,
)
from chop.passes.rewrite.surgery import bypass, set_module


@dataclass
class ScaledNorm:
    """A node that scales a normalised value along its last dimension.

    It calls a layer, or multiplies an explicit normalisation of `operand` by a parameter.
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
        """True if the node calls a layer, which also normalises."""
        return self.node.op == "call_module"


def find_norms(run: ExampleRun) -> Iterator[ScaledNorm]:
    """Yield every norm of a graph that has a scale."""
    constant = _constants(run.nodes)
    for node in run.nodes:
        op = None if node.op == "output" else find_op(node)
        if op is None:
            continue
        if node.op == "call_module" and op.dims == "norm_last":
            layer: Any = node_module(node)
            if layer.weight is not None and layer.weight.dim() == 1:
                bias = getattr(layer, "bias", None)
                shift = None if bias is None else bias.detach()
                yield ScaledNorm(node, node.all_input_nodes[0], layer.weight.detach(), shift)
        elif op.name == "mul":
            yield from _product(run, node, constant)


def _constants(nodes: list[fx.Node]) -> set[fx.Node]:
    """Return the nodes that depend on parameters and numbers alone."""
    constants: set[fx.Node] = set()
    for node in nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr" or (inputs and all(n in constants for n in inputs)):
            constants.add(node)
    return constants


def _product(run: ExampleRun, node: fx.Node, constant: set[fx.Node]) -> Iterator[ScaledNorm]:
    scales = [n for n in node.all_input_nodes if n in constant]
    others = [n for n in node.all_input_nodes if n not in constant]
    if len(scales) != 1 or len(others) != 1 or not isinstance(run.values[others[0]], Tensor):
        return
        return
    scale, x = run.values[scales[0]], run.values[others[0]]
    fits = isinstance(scale, Tensor) and scale.dim() == 1 and scale.is_floating_point()
    if fits and x.dim() > 1 and x.shape[-1] == len(scale) > 1:
        yield ScaledNorm(node, others[0], scale.detach())


def readers_of(run: ExampleRun, norm: ScaledNorm) -> Trail:
    """Return the layers that can absorb a norm's scale; raise if other nodes read it too."""
    if norm.is_layer:
        calls = Counter(str(n.target) for n in run.nodes if n.op == "call_module")
        if calls[str(norm.node.target)] > 1:
            raise RefusedError(f"module '{norm.node.target}' is called several times")
    draw = torch.Generator().manual_seed(0)
    factors = 0.5 + torch.rand(norm.size, generator=draw, dtype=torch.double)
    last = run.values[norm.node].dim() - 1
    trail = follow(run, scaling(factors), {norm.node: last}, extend=False)
    check_calls(run.graph, Trail({}, trail.readers))
    return trail


def fold(graph: MaseGraph, norm: ScaledNorm, trail: Trail, who: str) -> None:
    """Move the scale and the shift of a norm into the layers that read it."""
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


def centres(norm: ScaledNorm) -> bool:
    """Return True if a norm subtracts the mean, so that an added constant has no effect."""
    if not norm.is_layer:
        return False
    layer = node_module(norm.node)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, norm.size, generator=draw).to(norm.scale)
    with torch.no_grad():
        return is_same(layer(x + 1), layer(x))


def without_mean(graph: MaseGraph, norm: ScaledNorm) -> None:
    """Replace a norm that centres by one that does not; its operand must be centred."""
    old: Any = node_module(norm.node)
    new = nn.RMSNorm(norm.size, eps=old.eps, elementwise_affine=False)
    set_module(graph, str(norm.node.target), new.train(old.training))
