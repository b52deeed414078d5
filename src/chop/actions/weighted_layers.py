"""Layers with weights, and those of them that are still floats."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from chop.actions.targets import TARGETS
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.ops import Op, find_op, node_module
from chop.nn.quantized.convert import float_class_of, own_class
from chop.passes.rewrite.node_formats import node_quantizers

NO_LAYER = "parameters of no layer"
"""Name for parameters that the graph reads directly, such as the factors of an inlined norm."""


def weighted_layers(graph: MaseGraph) -> dict[fx.Node, nn.Module]:
    """Return the layers that can be quantised and have weights, by the first node of each."""
    layers: dict[fx.Node, nn.Module] = {}
    for node in (node for node in graph.nodes if node.op == "call_module"):
        op, layer = find_op(node, graph.custom_ops), node_module(node)
        is_layer = op is not None and is_weighted(op) and float_class_of(layer) is not None
        if is_layer and layer not in layers.values():
            layers[node] = layer
    if not layers:
        kind = type(graph.model).__name__
        raise ConfigError(
            f"{kind} has no layer with weights to quantise (linear, conv2d, embedding …). Name the "
            "ops to quantise: --type relu, or --ops in a search."
        )
    return layers


def weighted_ops(graph: MaseGraph) -> tuple[str, ...]:
    """Return the ops of `weighted_layers`, without duplicates."""
    ops = [find_op(node, graph.custom_ops) for node in weighted_layers(graph)]
    return tuple(dict.fromkeys(op.name for op in ops if op is not None))


def weight_count(layer: nn.Module) -> int:
    """Return the number of elements of all matrices, kernels and tables of a layer."""
    return sum(p.numel() for p in layer.parameters() if p.dim() > 1)


def is_weighted(op: Op) -> bool:
    """Return True if the parameters of an op are a matrix or a table."""
    has_own = op.compute is not None and bool(op.compute.parameters)
    return (has_own or bool(op.parameters)) and (op.macs is not None or op.reads_rows)


def left_in_float(graph: MaseGraph, target: str | None = None) -> list[dict[str, Any]]:
    """Return, by op, the layers with parameters that have no number format, the largest first.

    `share`: share of the parameters of the model. `reason`: why they have none; `target`: name of
    the target that the formats were chosen for.
    """
    total = sum(p.numel() for p in graph.model.parameters()) or 1
    rows: dict[str, dict[str, Any]] = {}
    counted: set[int] = set()
    for node in graph.nodes:
        own = [p for p in _parameters(graph, node) if id(p) not in counted]
        counted |= {id(p) for p in own}
        if not own or _has_format(node):
            continue
        op = find_op(node, graph.custom_ops)
        if node.op == "get_attr":
            name = NO_LAYER
        else:
            name = own_class(type(node_module(node))).__name__ if op is None else op.name
        blank = {
            "op": name,
            "layers": 0,
            "parameters": 0,
            "reason": _float_reason(node, op, target),
        }
        row = rows.setdefault(name, blank)
        row["layers"] += 1
        row["parameters"] += sum(p.numel() for p in own)
    ordered = sorted(rows.values(), key=lambda row: -row["parameters"])
    return [{**row, "share": row["parameters"] / total} for row in ordered]


def _float_reason(node: fx.Node, op: Op | None, target: str | None) -> str:
    """Return the reason why the parameters that a node reads have no format."""
    if node.op == "get_attr":
        return "no layer reads them"
    if op is None or float_class_of(node_module(node)) is None:
        return "no quantised layer exists for it"
    if not is_weighted(op):
        return "has vectors only"
    refusal = "" if target is None else TARGETS[target].refusal(node_module(node))
    return f"target {target} {refusal}" if refusal else "no rule names it"


def _parameters(graph: MaseGraph, node: fx.Node) -> list[nn.Parameter]:
    """Return the parameters of the layer that a node calls, or the one that it reads."""
    if node.op == "call_module":
        return list(node_module(node).parameters())
    if node.op != "get_attr":
        return []
    owner, _, name = str(node.target).rpartition(".")
    value = getattr(graph.model.get_submodule(owner), name, None)
    return [value] if isinstance(value, nn.Parameter) else []


def _has_format(node: fx.Node) -> bool:
    quantizers = node_quantizers(node) or {}
    return any(not quantizer.is_bypass for quantizer in quantizers.values())
