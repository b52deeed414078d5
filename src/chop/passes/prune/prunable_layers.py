"""The layers of a graph that can be pruned, and their masks, quantised or not."""

from __future__ import annotations

from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op, node_module
from chop.ir.reclass import mask_name, reclassed
from chop.nn.modules.lora import LoRALinear
from chop.nn.modules.masked import WEIGHT, Masked, with_mask, without_mask
from chop.nn.quantized.convert import from_float, own_class
from chop.nn.quantized.layer import QuantizedModule


def prunable_nodes(graph: MaseGraph) -> list[fx.Node]:
    """The calls of layers that multiply their input by a weight."""
    return [n for n in graph.fx_graph.nodes if n.op == "call_module" and _is_prunable(graph, n)]


def _is_prunable(graph: MaseGraph, node: fx.Node) -> bool:
    op, module = find_op(node, graph.custom_ops), node_module(node)
    has_weight = module._parameters.get(WEIGHT) is not None
    return op is not None and op.dims in CONTRACTIONS and has_weight


CONTRACTIONS = ("linear", "conv", "conv_transpose")
"""The dimension rules of layers whose weight takes input channels to output channels."""


def prunable_layers(graph: MaseGraph) -> dict[str, nn.Module]:
    """The layers that can be pruned, by path; one that several nodes call is there once."""
    paths = dict.fromkeys(str(node.target) for node in prunable_nodes(graph))
    return {path: graph.model.get_submodule(path) for path in paths}


def has_adapter(graph: MaseGraph) -> str | None:
    """The path of a layer with a low-rank adapter, whose weight is not its own; None if none."""
    found = (p for p, m in graph.model.named_modules() if isinstance(m, LoRALinear))
    return next(found, None)


def mask_of(layer: nn.Module) -> Tensor | None:
    """Where the weight of `layer` is kept; None where it is not pruned."""
    return layer._buffers.get(mask_name(WEIGHT)) if isinstance(layer, Masked) else None


def add_mask(layer: nn.Module, mask: Tensor) -> nn.Module:
    """`layer`, made one whose weight is pruned where `mask` is False; its format stays."""
    return _like(layer, with_mask(_as_float(layer), mask))


def remove_mask(layer: nn.Module) -> nn.Module:
    """A pruned layer, made one with the zeros in its weight and no mask; its format stays."""
    plain = _as_float(layer)
    assert isinstance(plain, Masked), f"{type(layer).__name__} has no mask"
    return _like(layer, without_mask(plain))


def _as_float(layer: nn.Module) -> nn.Module:
    return reclassed(layer, own_class(type(layer))) if isinstance(layer, QuantizedModule) else layer


def _like(layer: nn.Module, made: nn.Module) -> nn.Module:
    if not isinstance(layer, QuantizedModule):
        return made
    quantized = from_float(made, layer.config, where=type(layer).__name__)
    quantized.set_formats(layer.config, layer.quantizers)  # those may have been set by hand
    return quantized
