"""Fold batch normalisation into the convolution before it."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from chop.ir.graph import MaseGraph
from chop.ir.ops import node_module
from chop.log import get_logger
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.surgery import bypass, drop_unused_modules, set_module

logger = get_logger(__name__)
FUSABLE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
    nn.ConvTranspose1d: nn.BatchNorm1d,
    nn.ConvTranspose2d: nn.BatchNorm2d,
    nn.ConvTranspose3d: nn.BatchNorm3d,
}
"""Convolution -> the norm that it can absorb. Exact types: a subclass may compute differently."""


@graph_pass("fuse_conv_bn_transform_pass", rewrites=True)
def fuse_conv_bn_transform_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Scale and shift each convolution by the batch norm behind it, and remove the batch norm.

    A pair is fused if the norm is the only user of the convolution, neither module has other calls,
    and the norm is in evaluation mode with running statistics. The output in evaluation mode stays
    the same. `info["fused"]` maps convolution to norm, `info["skipped"]` has the reasons for not
    fusing.
    """
    fused: dict[str, str] = {}
    skipped: dict[str, str] = {}
    pairs = [(n.all_input_nodes[0], n) for n in graph.fx_graph.nodes if _is_pair(n)]
    for conv, norm in pairs:
        reason = _obstacle(graph, conv, norm)
        if reason:
            skipped[norm.name] = reason
            continue
        fused[conv.name] = norm.name
        _fuse(graph, conv, norm)
    if any(reason == IN_TRAINING for reason in skipped.values()):
        logger.warning("fuse_conv_bn: batch norms in training mode stay. Call mg.model.eval().")
    if fused:
        refresh(graph)
    return graph, {"fused": fused, "skipped": skipped}


IN_TRAINING = "in training mode"


def _is_pair(node: fx.Node) -> bool:
    if node.op != "call_module" or len(node.all_input_nodes) != 1:
        return False
    before = node.all_input_nodes[0]
    if before.op != "call_module":
        return False
    return FUSABLE.get(type(node_module(before))) is type(node_module(node))


def _obstacle(graph: MaseGraph, conv: fx.Node, norm: fx.Node) -> str | None:
    calls = Counter(id(node_module(n)) for n in graph.fx_graph.nodes if n.op == "call_module")
    batch_norm = node_module(norm)
    checks = {
        "the convolution has other users": len(conv.users) > 1,
        "a module is called elsewhere": calls[id(node_module(conv))] > 1
        or calls[id(batch_norm)] > 1,
        "no running statistics": batch_norm.running_mean is None,
        IN_TRAINING: batch_norm.training,
    }
    return next((reason for reason, holds in checks.items() if holds), None)


def _fuse(graph: MaseGraph, conv: fx.Node, norm: fx.Node) -> None:
    module: Any = copy.deepcopy(node_module(conv))
    batch_norm: Any = node_module(norm)
    module.weight, module.bias = fuse_conv_bn_weights(
        module.weight,
        module.bias,
        batch_norm.running_mean,
        batch_norm.running_var,
        batch_norm.eps,
        batch_norm.weight,
        batch_norm.bias,
        transpose=bool(getattr(module, "transposed", False)),
    )
    set_module(graph, str(conv.target), module)
    target = str(norm.target)
    bypass(norm, conv)
    drop_unused_modules(graph, [target])
