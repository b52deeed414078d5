"""Fuse attention that a model writes out into one call."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import fx, nn

from chop.ir.graph import MaseGraph
from chop.ir.modes import ModeConstant
from chop.ir.ops import node_module
from chop.kernels.attention import scaled_dot_product_attention
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.node_patterns import (
    Match,
    NoMatchError,
    Pattern,
    PatternStep,
    apply_pattern,
    erase,
    erase_unused,
    number,
    op_name,
)
from chop.passes.rewrite.surgery import drop_unused_modules, set_module

LAST_TWO = ((-1, -2), (-2, -1), (2, 3), (3, 2))


@graph_pass("fuse_attention_transform_pass", rewrites=True)
def fuse_attention_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Replace matmul, scale, mask, softmax, dropout, matmul by `scaled_dot_product_attention`.

    Added masks (also position biases) and filled masks become its mask; dropout keeps its rate and
    follows training mode. The call is that of `chop.kernels`: our kernel for float32 on the CPU
    without gradients, otherwise torch's function. `info["sites"]` has a record for each softmax:
    fused, or the reason why not. The output stays equal up to rounding.
    """
    records = apply_pattern(graph, ATTENTION)
    fused = sum(r.fused for r in records)
    if fused:
        refresh(graph)
    return graph, {"sites": [dataclasses.asdict(r) for r in records], "fused": fused}


def rewrite_attention(graph: MaseGraph, match: Match) -> fx.Node:
    """Replace the last matmul by the fused call."""
    _check_softmax(match.one("site"))
    query, key_transposed = _operands(match.one("scores"))
    output = match.one("output")
    _, value = _operands(output)
    scale = _scale(match.maybe("scale"))
    with graph.fx_graph.inserting_before(output):
        mask = _mask(graph, match)
        key = _untransposed(graph, key_transposed)
        options: dict[str, Any] = {"attn_mask": mask, "scale": scale}
        dropout = match.maybe("dropout")
        if dropout is not None:
            options["dropout_p"] = _dropout_rate(graph, dropout)
        grouped = (_before_repeat(key), _before_repeat(value))
        if mask is None and None not in grouped:
            key, value = cast(tuple[fx.Node, fx.Node], grouped)
            options["enable_gqa"] = True
        new = graph.fx_graph.call_function(
            scaled_dot_product_attention, (query, key, value), options
        )
    output.replace_all_uses_with(new)
    erase(match)
    erase_unused(key_transposed)
    drop_unused_modules(graph, [str(dropout.target)] if dropout is not None else [])
    return new


def _operands(product: fx.Node) -> tuple[fx.Node, fx.Node]:
    first, second = product.args[:2]
    if not isinstance(first, fx.Node) or not isinstance(second, fx.Node):
        raise NoMatchError(f"'{product.name}' does not multiply two tensors of the graph")
    return first, second


def _check_softmax(softmax: fx.Node) -> None:
    dim: Any
    if softmax.op == "call_module":
        dim = node_module(softmax).dim
    else:
        dim = softmax.kwargs.get("dim", softmax.args[1] if len(softmax.args) > 1 else None)
    if dim not in (-1, 3):
        raise NoMatchError(f"'{softmax.name}' is over dimension {dim}, not over the keys")


def _scale(node: fx.Node | None) -> float:
    """Return the factor of the scores."""
    if node is None:
        return 1.0
    values = [v for v in map(number, node.args) if v is not None]
    if len(values) != 1:
        raise NoMatchError(f"the scale at '{node.name}' is not a number")
    is_division = "div" in str(getattr(node.target, "__name__", node.target))
    if is_division and number(node.args[0]) is not None:
        raise NoMatchError(f"'{node.name}' divides by the scores")
    return 1.0 / values[0] if is_division else values[0]


def _mask(graph: MaseGraph, match: Match) -> Any:
    """Return the sum of everything that is added to the scores; None without a mask."""
    total: Any = None
    for node in reversed(match.all("mask")):  # in the order of execution
        is_filled = op_name(graph, node) == "masked_fill"
        part = _filled(graph, node) if is_filled else _added(node, match)
        total = part if total is None else graph.fx_graph.call_function(torch.add, (total, part))
    return total


def _added(node: fx.Node, match: Match) -> fx.Node:
    """Return the operand of an addition that is not the scores."""
    others = [a for a in node.args[:2] if a not in match.nodes]
    if len(others) != 1 or not isinstance(others[0], fx.Node):
        raise NoMatchError(f"'{node.name}' adds no tensor of the graph to the scores")
    if number(node.kwargs.get("alpha", 1)) != 1.0:
        raise NoMatchError(f"'{node.name}' adds with a factor (alpha)")
    return others[0]


def _filled(graph: MaseGraph, node: fx.Node) -> fx.Node:
    """Return `masked_fill(scores, mask, value)` as an addend: the value inside the mask, else 0."""
    where, value = node.args[1:3]
    if number(value) is None:
        raise NoMatchError(f"'{node.name}' fills in something that is not a number")
    return graph.fx_graph.call_function(torch.where, (where, value, 0.0))


def _untransposed(graph: MaseGraph, node: fx.Node) -> fx.Node:
    """Return the keys of a node that exchanges their last two dimensions."""
    is_transpose = node.target in ("transpose", torch.transpose) and len(node.args) == 3
    if is_transpose and node.args[1:] in LAST_TWO:
        return node.args[0]  # type: ignore[return-value]
    return graph.fx_graph.call_method("transpose", (node, -1, -2))


def _dropout_rate(graph: MaseGraph, dropout: fx.Node) -> Any:
    """Return the rate in training and 0 in evaluation, as a node of the graph."""
    module = node_module(dropout) if dropout.op == "call_module" else None
    if not isinstance(module, nn.Dropout):
        raise NoMatchError(f"'{dropout.name}' is not a dropout whose rate is known")
    if module.p == 0.0:
        return 0.0
    rate = ModeConstant(module.p, 0.0)
    rate.training = module.training
    target = f"{dropout.target}_rate"
    set_module(graph, target, rate)
    return graph.fx_graph.call_module(target)


def _before_repeat(node: fx.Node) -> fx.Node | None:
    """Return `x` of `reshape(expand(x[:, :, None]))`; None for other nodes."""
    for target in ("reshape", "expand"):
        if node.target != target or not isinstance(node.args[0], fx.Node):
            return None
        node = node.args[0]
    everything = slice(None, None, None)
    inserts_group = (everything, everything, None, everything, everything)
    is_insertion = len(node.args) == 2 and node.args[1] == inserts_group
    return node.args[0] if is_insertion else None  # type: ignore[return-value]


def find_repeated_heads(graph: MaseGraph, site: fx.Node) -> Match:
    """Match attention whose keys and values are repeated for groups of query heads."""
    if site.target not in (F.scaled_dot_product_attention, scaled_dot_product_attention):
        raise NoMatchError(f"'{site.name}' is not torch's function")
    operands = [a for a in site.args[1:3] if isinstance(a, fx.Node)]
    if len(operands) != 2 or any(_before_repeat(node) is None for node in operands):
        raise NoMatchError(f"the heads of '{site.name}' are not repeated for groups")
    return Match({"site": [site], "repeated": operands})


def rewrite_repeated_heads(graph: MaseGraph, match: Match) -> fx.Node:
    """Pass the groups to the function instead of repeated heads."""
    site = match.one("site")
    before = [_before_repeat(node) for node in match.all("repeated")]
    site.args = (site.args[0], *before, *site.args[3:])
    site.kwargs = {**site.kwargs, "enable_gqa": True}
    site.target = scaled_dot_product_attention
    for node in match.all("repeated"):
        erase_unused(node)
    return site


GROUPED_ATTENTION = Pattern(
    name="grouped_attention",
    site=("scaled_dot_product_attention",),
    find=find_repeated_heads,
    rewrite=rewrite_repeated_heads,
)
ATTENTION = Pattern(
    name="attention",
    site=("softmax",),
    before=(
        PatternStep("mask", ("add", "masked_fill"), repeated=True),
        PatternStep("scale", ("mul", "div"), optional=True),
        PatternStep("scores", ("matmul", "bmm")),
    ),
    after=(
        PatternStep("cast", ("to",), optional=True),
        PatternStep("dropout", ("dropout",), optional=True),
        PatternStep("output", ("matmul", "bmm")),
    ),
    rewrite=rewrite_attention,
)
