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
    """Return the calls of layers that multiply their input by a weight."""
    calls = [n for n in graph.fx_graph.nodes if n.op == "call_module"]
    ops = {n: find_op(n, graph.custom_ops) for n in calls}
    return [
        node
        for node, op in ops.items()
        if op is not None and op.dims in CONTRACTIONS
        if node_module(node)._parameters.get(WEIGHT) is not None
    ]


CONTRACTIONS = ("linear", "conv", "conv_transpose")
"""Dimension rules of layers whose weight maps input channels to output channels."""


def prunable_layers(graph: MaseGraph) -> dict[str, nn.Module]:
    """Return the layers that can be pruned, by path; each layer once."""
    paths = dict.fromkeys(str(node.target) for node in prunable_nodes(graph))
    return {path: graph.model.get_submodule(path) for path in paths}


def has_adapter(graph: MaseGraph) -> str | None:
    """Return the path of a layer with a low-rank adapter; None if there is none."""
    return next((p for p, m in graph.model.named_modules() if isinstance(m, LoRALinear)), None)


def mask_of(layer: nn.Module) -> Tensor | None:
    """Return the mask of the kept weights of `layer`; None if it is not pruned."""
    return layer._buffers.get(mask_name(WEIGHT)) if isinstance(layer, Masked) else None


def add_mask(layer: nn.Module, mask: Tensor) -> nn.Module:
    """Return `layer` with its weight pruned where `mask` is False; its format stays."""
    return _like(layer, with_mask(_as_float(layer), mask))


def remove_mask(layer: nn.Module) -> nn.Module:
    """Return a pruned layer with zeros in its weight and no mask; its format stays."""
    plain = _as_float(layer)
    assert isinstance(plain, Masked), f"{type(layer).__name__} has no mask"
    return _like(layer, without_mask(plain))


def _as_float(layer: nn.Module) -> nn.Module:
    return reclassed(layer, own_class(type(layer))) if isinstance(layer, QuantizedModule) else layer


def _like(layer: nn.Module, plain: nn.Module) -> nn.Module:
    if not isinstance(layer, QuantizedModule):
        return plain
    quantized = from_float(plain, layer.config, where=type(layer).__name__)
    quantized.set_formats(layer.config, layer.quantizers)  # those may have been set by hand
    return quantized
