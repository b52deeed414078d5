"""Fuse pairs and groups of layers: a table of patterns on one matcher.

To add a pattern, add a `Pattern` with its rewrite to `PATTERNS`.
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
from chop.passes.rewrite.surgery import bypass, drop_unused_modules, set_module

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
    """Settings of `fuse_patterns_transform_pass`. `patterns`: those to fuse, in order."""

    patterns: tuple[PatternName, ...] = get_args(PatternName)


@graph_pass("fuse_patterns_transform_pass", FusePatternsArgs, rewrites=True)
def fuse_patterns_transform_pass(graph: MaseGraph, args: FusePatternsArgs) -> PassResult:
    """Fuse attention, linear + activation, add + layer norm, projections, norms and rotations.

    Norms and rotations are those that decoders write out; projections are those of one input.
    Attention on heads that are repeated for groups of query heads reads each of them once. On a
    GPU a norm rounds its result if all packed layers that read it would, and includes the sum
    before it.

    `info["sites"]` has a record for each site: fused, or the reason why not. Parameters are shared
    with the original layers, except for merged projections, whose weights are joined, packed ones
    as bytes. The output stays equal up to rounding.
    """
    records = [r for name in args.patterns for r in apply_pattern(graph, PATTERNS[name])]
    fused = sum(r.fused for r in records)
    if fused:
        refresh(graph)
    return graph, {"sites": [dataclasses.asdict(r) for r in records], "fused": fused}


def _plain_module(graph: MaseGraph, node: fx.Node, kind: type[M]) -> M:
    module = node_module(node) if node.op == "call_module" else None
    if type(module) is not kind or not isinstance(module, kind):
        raise NoMatchError(f"'{node.name}' is not a plain {kind.__name__} module")
    calls = [n for n in graph.fx_graph.nodes if n.op == "call_module" and node_module(n) is module]
    if len(calls) != 1:
        raise NoMatchError(f"the module of '{node.name}' is called elsewhere too")
    if module._forward_hooks or module._forward_pre_hooks:
        raise NoMatchError(f"the module of '{node.name}' has hooks")
    return module


# -- linear + activation ---------------------------------------------------------------------


def _activation(graph: MaseGraph, node: fx.Node) -> str:
    is_layer = node.op == "call_module"
    settings = vars(node_module(node)) if is_layer else node.kwargs
    suffix = "_tanh" if settings.get("approximate", "none") == "tanh" else ""
    return f"{op_name(graph, node)}{suffix}"


def _rewrite_linear_activation(graph: MaseGraph, match: Match) -> fx.Node:
    linear, site = match.one("linear"), match.one("site")
    module = _plain_module(graph, linear, nn.Linear)
    new = LinearActivation(module, _activation(graph, site))
    targets = [str(site.target)] if site.op == "call_module" else []
    set_module(graph, str(linear.target), new)
    bypass(site, linear)
    drop_unused_modules(graph, targets)
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
    """Return True if only one node reads the tensor, which a linear layer made (and dropout)."""
    while op_name(graph, node) == "dropout" and len(node.users) == 1:
        node = node.all_input_nodes[0]
    return op_name(graph, node) == "linear" and len(node.users) == 1


# -- projections of one input ----------------------------------------------------------------


def _find_projections(graph: MaseGraph, site: fx.Node) -> Match:
    """Match the linear layers of one parent that read the site's input, at the first of them."""
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
    """Return one packed layer with the outputs of all: their bytes are joined."""
    first = layers[0]
    kinds = [(m.format, m.group_size, m.dtype, m.quantizers, m.codes.device) for m in layers]
    if any(kind != kinds[0] for kind in kinds) or "data_out" in first.quantizers:
        raise NoMatchError("the packed projections differ in their formats, or round their results")
    if any(set(m._buffers) != {"codes", "scales"} for m in layers):
        raise NoMatchError("the packed projections have scales of their own for their inputs")
    codes, scales = (torch.cat([getattr(m, n) for m in layers]) for n in ("codes", "scales"))
    weight = PackedTensor(codes, scales, first.format, first.group_size, first.in_features)
    biases = [m.bias for m in layers if m.bias is not None]
    if len({bias.requires_grad for bias in biases}) > 1:
        raise NoMatchError("the projections differ in whether their biases train")
    bias = _joined_bias(layers, biases[0], biases[0].requires_grad) if biases else None
    return QLinearPacked(weight, bias, first.quantizers, first.dtype).train(first.training)


def _joined_bias(layers: list[Any], like: torch.Tensor, trains: bool) -> nn.Parameter:
    """Join the biases of layers, with zeros of the dtype of `like` for missing ones."""
    filled = [like.new_zeros(m.out_features) if m.bias is None else m.bias.detach() for m in layers]
    return nn.Parameter(torch.cat(filled), trains)


def _merged(layers: list[nn.Linear]) -> nn.Linear:
    first, weights = layers[0].weight, [layer.weight.detach() for layer in layers]
    has_bias = any(layer.bias is not None for layer in layers)
    new = nn.Linear(1, 1, bias=has_bias, device="meta")
    new.in_features, new.out_features = first.shape[1], sum(len(w) for w in weights)
    new.weight = nn.Parameter(torch.cat(weights), first.requires_grad)
    if has_bias:
        new.bias = _joined_bias(layers, first, first.requires_grad)
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
