"""Pairs and groups of layers as one: a table of patterns on one matcher.

Add a pattern: a `Pattern` and its rewrite, and a row in `PATTERNS`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import fx, nn

from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.kernels import PackedTensor, QLinearPacked
from chop.kernels.fused import ACTIVATIONS, AddLayerNorm, LinearActivation
from chop.passes.base import PassResult, graph_pass
from chop.passes.graph.transforms.fuse_attention import ATTENTION, GROUPED_ATTENTION
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.decoder_patterns import RMS_NORM, ROTARY, ROUNDED_NORM
from chop.passes.rewrite.node_patterns import (
    Match,
    NoMatchError,
    Pattern,
    PatternStep,
    apply_pattern,
    erase,
    op_name,
)
from chop.passes.rewrite.surgery import drop_unused_modules, set_module

M = TypeVar("M", bound=nn.Module)
PatternName = Literal[
    "attention",
    "grouped_attention",
    "rms_norm",
    "rotary",
    "merge_projections",
    "rounded_norm",
    "linear_activation",
    "add_layer_norm",
]


@dataclass(frozen=True)
class FusePatternsArgs:
    """Which patterns to look for, in order."""

    patterns: tuple[PatternName, ...] = get_args(PatternName)


@graph_pass("fuse_patterns_transform_pass", FusePatternsArgs, rewrites=True)
def fuse_patterns_transform_pass(graph: MaseGraph, args: FusePatternsArgs) -> PassResult:
    """Fuse attention, linear + activation, add + layer norm, projections of one input, and the
    norms and rotations that decoders write out.

    Attention on heads that are repeated for groups of query heads reads each of them once. On a GPU
    a norm rounds its result where the packed layers that read it would, with the sum before it.

    `info["sites"]` has a record for each place a pattern was looked for: fused, or the reason why
    not. Parameters are shared with the layers before, but for merged projections, whose weights
    are joined, packed ones as bytes. The output stays equal up to rounding.
    """
    records = [r for name in args.patterns for r in apply_pattern(graph, PATTERNS[name])]
    fused = sum(r.fused for r in records)
    if fused:
        refresh(graph)
    return graph, {"sites": [dataclasses.asdict(r) for r in records], "fused": fused}


def _is_called_once(graph: MaseGraph, node: fx.Node) -> bool:
    calls = Counter(id(node_module(n)) for n in graph.fx_graph.nodes if n.op == "call_module")
    return calls[id(node_module(node))] == 1


def _plain_module(graph: MaseGraph, node: fx.Node, kind: type[M]) -> M:
    module = node_module(node) if node.op == "call_module" else None
    if type(module) is not kind or not isinstance(module, kind):
        raise NoMatchError(f"'{node.name}' is not a plain {kind.__name__} module")
    if not _is_called_once(graph, node):
        raise NoMatchError(f"the module of '{node.name}' is called elsewhere too")
    if module._forward_hooks or module._forward_pre_hooks:
        raise NoMatchError(f"the module of '{node.name}' has hooks")
    return module


# -- linear + activation ---------------------------------------------------------------------


def _activation(graph: MaseGraph, node: fx.Node) -> str:
    name = str(op_name(graph, node))
    if node.op == "call_module":
        approximate = getattr(node_module(node), "approximate", "none")
    else:
        approximate = node.kwargs.get("approximate", "none")
    return f"{name}_tanh" if approximate == "tanh" else name


def _rewrite_linear_activation(graph: MaseGraph, match: Match) -> fx.Node:
    linear, site = match.one("linear"), match.one("site")
    module = _plain_module(graph, linear, nn.Linear)
    new = LinearActivation(module, _activation(graph, site))
    target = str(site.target) if site.op == "call_module" else None
    set_module(graph, str(linear.target), new)
    site.replace_all_uses_with(linear)
    graph.fx_graph.erase_node(site)
    drop_unused_modules(graph, [target] if target else [])
    return linear


# -- add + layer norm ------------------------------------------------------------------------


def _rewrite_add_layer_norm(graph: MaseGraph, match: Match) -> fx.Node:
    add, site = match.one("add"), match.one("site")
    norm = _plain_module(graph, site, nn.LayerNorm)
    first, second = (*add.args, None, None)[:2]
    if not isinstance(first, fx.Node) or not isinstance(second, fx.Node) or add.kwargs:
        raise NoMatchError(f"'{add.name}' does not add two tensors of the graph")
    if not _is_own_product(graph, first) and _is_own_product(graph, second):
        first, second = second, first
    overwrites = _is_own_product(graph, first)
    set_module(graph, str(site.target), AddLayerNorm(norm, overwrites=overwrites))
    site.args = (first, second)
    graph.fx_graph.erase_node(add)
    return site


def _is_own_product(graph: MaseGraph, node: fx.Node) -> bool:
    """Whether a tensor is fresh from a linear layer, at most through dropout, and read once."""
    while op_name(graph, node) == "dropout" and len(node.users) == 1:
        node = node.all_input_nodes[0]
    return op_name(graph, node) == "linear" and len(node.users) == 1


# -- projections of one input ----------------------------------------------------------------


def _find_projections(graph: MaseGraph, site: fx.Node) -> Match:
    """The linear layers of one parent that read what the site reads, found at the first of them."""
    source, parent = site.all_input_nodes[0], str(site.target).rpartition(".")[0]
    same = [
        node
        for node in source.users
        if node.op == "call_module"
        and node.args == (source,)
        and str(node.target).rpartition(".")[0] == parent
        and type(node_module(node)) is type(node_module(site))
    ]
    if len(same) < 2:
        raise NoMatchError(f"no other projection of '{source.name}' in '{parent}'")
    if site is not same[0]:
        raise NoMatchError(f"is considered at '{same[0].name}'")
    return Match({"projection": same})


def _rewrite_projections(graph: MaseGraph, match: Match) -> fx.Node:
    nodes = match.all("projection")
    layers: list[Any]
    if isinstance(node_module(nodes[0]), QLinearPacked):
        layers = [_plain_module(graph, node, QLinearPacked) for node in nodes]
        merged: nn.Module = merged_packed(layers)
    else:
        layers = [_plain_module(graph, node, nn.Linear) for node in nodes]
        _check_own_parameters(graph, nodes, layers)
        merged = _merged(layers)
    parent, _, _ = str(nodes[0].target).rpartition(".")
    leaf = "_".join(str(node.target).rpartition(".")[2] for node in nodes)
    target = f"{parent}.{leaf}" if parent else leaf
    set_module(graph, target, merged)
    sizes = [layer.out_features for layer in layers]
    with graph.fx_graph.inserting_before(nodes[0]):
        product = graph.fx_graph.call_module(target, nodes[0].args)
        parts = graph.fx_graph.call_method("split", (product, sizes), {"dim": -1})
        for i, node in enumerate(nodes):
            part = graph.fx_graph.call_function(operator.getitem, (parts, i))
            node.replace_all_uses_with(part)
    targets = [str(node.target) for node in nodes]
    erase(match)
    drop_unused_modules(graph, targets)
    return product


def _check_own_parameters(graph: MaseGraph, nodes: list[fx.Node], layers: list[nn.Linear]) -> None:
    shared = Counter(id(p) for _, p in graph.model.named_parameters(remove_duplicate=False))
    for node, layer in zip(nodes, layers, strict=True):
        if any(shared[id(p)] > 1 for p in layer.parameters()):
            raise NoMatchError(f"'{node.name}' shares its weight with another layer")
    if len({(p.dtype, p.device, p.requires_grad) for m in layers for p in m.parameters()}) > 1:
        raise NoMatchError("the projections differ in dtype, device or whether they train")


def merged_packed(layers: list[QLinearPacked]) -> QLinearPacked:
    """One packed layer whose outputs are those of all, side by side: their bytes are joined."""
    first = layers[0]
    kinds = [(m.format, m.group_size, m.dtype, m.quantizers, m.codes.device) for m in layers]
    if any(kind != kinds[0] for kind in kinds) or "data_out" in first.quantizers:
        raise NoMatchError("the packed projections differ in their formats, or round their results")
    if any(set(m._buffers) != {"codes", "scales"} for m in layers):
        raise NoMatchError("the packed projections have scales of their own for their inputs")
    codes, scales = (torch.cat([getattr(m, n) for m in layers]) for n in ("codes", "scales"))
    weight = PackedTensor(codes, scales, first.format, first.group_size, first.in_features)
    new = QLinearPacked(weight, _merged_bias(layers), first.quantizers, first.dtype)
    return new.train(first.training)


def _merged_bias(layers: list[QLinearPacked]) -> nn.Parameter | None:
    biases = [m.bias for m in layers]
    if all(b is None for b in biases):
        return None
    if len({b.requires_grad for b in biases if b is not None}) > 1:
        raise NoMatchError("the projections differ in whether their biases train")
    like = next(b for b in biases if b is not None)
    filled = [like.new_zeros(m.out_features) if m.bias is None else m.bias.detach() for m in layers]
    return nn.Parameter(torch.cat(filled), like.requires_grad)


def _merged(layers: list[nn.Linear]) -> nn.Linear:
    """One linear layer whose outputs are those of all, side by side."""
    weights = [layer.weight for layer in layers]
    biases = [layer.bias for layer in layers]
    has_bias = any(b is not None for b in biases)
    new = nn.Linear(1, 1, bias=has_bias, device="meta")
    new.in_features, new.out_features = weights[0].shape[1], sum(w.shape[0] for w in weights)
    is_trained = weights[0].requires_grad
    new.weight = nn.Parameter(torch.cat([w.detach() for w in weights]), is_trained)
    if has_bias:
        filled = [
            w.new_zeros(w.shape[0]) if b is None else b.detach()
            for w, b in zip(weights, biases, strict=True)
        ]
        new.bias = nn.Parameter(torch.cat(filled), is_trained)
    new.training = layers[0].training
    return new


PATTERNS: dict[str, Pattern] = {
    "attention": ATTENTION,
    "grouped_attention": GROUPED_ATTENTION,
    "rms_norm": RMS_NORM,
    "rotary": ROTARY,
    "rounded_norm": ROUNDED_NORM,
    "linear_activation": Pattern(
        "linear_activation",
        site=tuple(name for name in ACTIVATIONS if not name.endswith("_tanh")),
        before=(PatternStep("linear", ("linear",)),),
        rewrite=_rewrite_linear_activation,
    ),
    "add_layer_norm": Pattern(
        "add_layer_norm",
        site=("layer_norm",),
        before=(PatternStep("add", ("add",)),),
        rewrite=_rewrite_add_layer_norm,
    ),
    "merge_projections": Pattern(
        "merge_projections",
        site=("linear", "packed_linear"),
        find=_find_projections,
        rewrite=_rewrite_projections,
    ),
}
