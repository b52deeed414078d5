"""Replace linear layers with 2:4 weights by layers that GPUs compute faster."""

from __future__ import annotations

from dataclasses import dataclass

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
from chop.passes.rewrite.lift_layers import lift_products
from chop.passes.rewrite.module_patterns import select
from chop.passes.rewrite.surgery import replace_modules

logger = get_logger(__name__)


@dataclass(frozen=True)
class SemiStructuredArgs:
    """Settings of `pack_semi_structured_transform_pass`.

    `target_modules`: patterns of module paths, which must fit; without it all that fit are packed.
    """

    target_modules: tuple[str, ...] | None = None


@graph_pass("pack_semi_structured_transform_pass", SemiStructuredArgs, rewrites=True)
def pack_semi_structured_transform_pass(graph: MaseGraph, args: SemiStructuredArgs) -> PassResult:
    """Replace linear layers with 2:4 weights by layers that store two values of every four.

        prune_transform_pass(mg, {"weight": {"granularity": "2:4"}})
        pack_semi_structured_transform_pass(mg)

    On a GPU in bfloat16 or float16 they compute on torch's semi-structured tensors (cuSPARSELt, or
    CUTLASS if torch has no cuSPARSELt), elsewhere with the dense weight, as before. Outputs must be
    a multiple of 32 and inputs of 64. Weights and masks no longer train. A graph with packed layers
    stays unchanged. `info["packed"]` has the paths of the new layers, `info["kept"]` the reasons
    for keeping the other linear layers, and `info["before"]` and `info["after"]` are bytes of the
    weights that changed.
    """
    lift_products(graph)
    layers = prunable_layers(graph)
    where = "pack_semi_structured.target_modules"
    chosen = {path: layers[path] for path in select(args.target_modules, list(layers), where)}
    faults = {path: _fault(graph, path, layer) for path, layer in chosen.items()}
    faulty = {path: fault for path, fault in faults.items() if fault is not None}
    if faulty and args.target_modules is not None:
        path, fault = next(iter(faulty.items()))
        raise PassError(f"pack_semi_structured: '{path}': {fault}.")
    plain = {path: layer for path, layer in chosen.items() if path not in faulty}
    new = replace_modules(graph, plain, lambda _, layer: SemiStructuredLinear.from_linear(layer))  # type: ignore[arg-type]
    info = {
        "packed": list(plain),
        "before": sum(m.weight.nbytes for m in {id(m): m for m in plain.values()}.values()),  # type: ignore[misc]
        "after": sum(layer.values.nbytes + layer.indices.nbytes for layer in new),
    }
    if faulty and not info["packed"]:
        logger.warning("pack_semi_structured: no layer was packed. info['kept'] says why.")
    refresh(graph)
    return graph, {**info, "kept": faulty}


def _fault(graph: MaseGraph, path: str, layer: nn.Module) -> str | None:
    """Return the reason why a layer stays; None if it can be packed."""
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
