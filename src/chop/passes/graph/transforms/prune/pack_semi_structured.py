"""Linear layers with 2:4 weights, as layers that GPUs compute faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from chop.errors import PassError
from chop.ir.graph import MaseGraph
from chop.log import get_logger
from chop.nn.modules.masked import Masked
from chop.nn.modules.semi_structured import SemiStructuredLinear, two_of_four_fault
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.base import PassResult, graph_pass
from chop.passes.prune.prunable_layers import prunable_layers
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.lift_products import lift_products
from chop.passes.rewrite.module_patterns import select
from chop.passes.rewrite.surgery import set_module

logger = get_logger(__name__)


@dataclass(frozen=True)
class SemiStructuredArgs:
    """`target_modules`: patterns of module paths. Layers that it names must fit; without it those
    that fit are taken.
    """

    target_modules: tuple[str, ...] | None = None


@graph_pass("pack_semi_structured_transform_pass", SemiStructuredArgs, rewrites=True)
def pack_semi_structured_transform_pass(graph: MaseGraph, args: SemiStructuredArgs) -> PassResult:
    """Replace linear layers whose weights are 2:4 by layers that keep two values of every four.

        prune_transform_pass(mg, {"weight": {"granularity": "2:4"}})
        pack_semi_structured_transform_pass(mg)

    On a GPU in bfloat16 or float16 they compute on torch's semi-structured tensors (cuSPARSELt, or
    CUTLASS where torch has no cuSPARSELt); elsewhere with the weight written out, as before.
    Outputs must be a multiple of 32 and inputs of 64. Weights and masks no longer train. Does
    nothing to a graph whose layers are so already.
    `info["packed"]` has the paths of the new layers, `info["kept"]` says of the other linear layers
    why they stay, and `info["before"]` and `info["after"]` are bytes of the weights that changed.
    """
    lift_products(graph)
    layers = prunable_layers(graph)
    where = "pack_semi_structured.target_modules"
    chosen = {path: layers[path] for path in select(args.target_modules, list(layers), where)}
    faults = {path: _fault(graph, path, layer) for path, layer in chosen.items()}
    kept = {path: fault for path, fault in faults.items() if fault is not None}
    if kept and args.target_modules is not None:
        path, fault = next(iter(kept.items()))
        raise PassError(f"pack_semi_structured: '{path}': {fault}.")
    info = _replace(graph, {path: chosen[path] for path in chosen if path not in kept})
    if kept and not info["packed"]:
        logger.warning("pack_semi_structured: no layer was packed. info['kept'] says why.")
    refresh(graph)
    return graph, {**info, "kept": kept}


def _fault(graph: MaseGraph, path: str, layer: nn.Module) -> str | None:
    """Why a layer stays as it is; None where it need not."""
    plain = layer.plain_class if isinstance(layer, Masked) else type(layer)
    if plain is not nn.Linear or isinstance(layer, QuantizedModule):
        return f"{type(layer).__name__} is no plain Linear"
    if layer._forward_hooks or layer._forward_pre_hooks:
        return "it has hooks"
    if any(n.op == "get_attr" and n.target == f"{path}.weight" for n in graph.fx_graph.nodes):
        return "the graph itself reads its weight"
    weight = layer.weight
    assert isinstance(weight, Tensor), f"'{path}' has no weight"
    return two_of_four_fault(weight)


def _replace(graph: MaseGraph, layers: dict[str, nn.Module]) -> dict[str, Any]:
    made: dict[int, SemiStructuredLinear] = {}
    before = after = 0
    for path, layer in layers.items():
        if id(layer) not in made:
            assert isinstance(layer, nn.Linear), f"'{path}' is no Linear"
            new = made[id(layer)] = SemiStructuredLinear.from_linear(layer)
            before += layer.weight.nbytes
            after += new.values.nbytes + new.indices.nbytes
        set_module(graph, path, made[id(layer)])
    return {"packed": list(layers), "before": before, "after": after}
