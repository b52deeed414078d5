"""Scales of an 8-bit float cache, measured on calibration data: `kv_cache_scheme`.

Servers store keys and values in E4M3 divided by one scale for the keys and one for the values of a
layer. The scale maps the largest magnitude that calibration finds to the largest number of E4M3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from chop.errors import ExportError
from chop.ir.graph import MaseGraph
from chop.ir.trace.environment import evaluation_mode
from chop.nn.quantizers.fp8 import FP8
from chop.passes.rewrite.propagate import bind_inputs

ATTENTION = F.scaled_dot_product_attention
KEY, VALUE = 1, 2
"""Positions of the keys and the values among the operands of attention."""
SCHEME: Mapping[str, Any] = {
    "num_bits": 8,
    "type": "float",
    "strategy": "tensor",
    "symmetric": True,
    "dynamic": False,
}
"""`kv_cache_scheme` of a folder of compressed-tensors."""


def cache_scales(graph: MaseGraph, batches: Iterable[Any]) -> dict[str, Tensor]:
    """Return `k_scale` and `v_scale` of each attention, under their names in files.

    Keys are those that are cached, with their rotary embedding. Raise ExportError if the graph has
    no attention with projections of its own.
    """
    places = {n: _path(n) for n in graph.fx_graph.nodes if n.target is ATTENTION}
    paths = [path for path in places.values() if path is not None]
    if not paths or len(paths) != len(places) or len({*paths}) != len(paths):
        raise ExportError(
            "kv_cache_scheme: needs one attention (torch's scaled_dot_product_attention) for each "
            f"layer, with keys from a linear layer, and the graph has {len({*paths})} of "
            f"{len(places)} with a layer of their own."
        )
    largest = _largest(graph, {*places}, batches)
    scales = {}
    for node, path in places.items():
        for name, value in zip(("k_scale", "v_scale"), largest[node], strict=True):
            if not 0 < value < float("inf"):
                raise ExportError(
                    f"kv_cache_scheme: '{path}.{name}': the largest magnitude on the calibration "
                    f"data is {value}. Allowed: data with finite keys and values that are not zero."
                )
            scales[f"{path}.{name}"] = torch.tensor([value / FP8("e4m3").range[1]])
    return scales


def _path(node: fx.Node) -> str | None:
    """Return the path of the module whose linear layer computes the values of an attention."""
    source = node.args[VALUE] if len(node.args) > VALUE else node.kwargs.get("value")
    waiting = deque([source] if isinstance(source, fx.Node) else [])
    while waiting:
        each = waiting.popleft()
        if each.op == "call_module":
            return str(each.target).rpartition(".")[0]
        waiting.extend(each.all_input_nodes)
    return None


def _largest(
    graph: MaseGraph, nodes: set[fx.Node], batches: Iterable[Any]
) -> dict[fx.Node, tuple[float, float]]:
    """Return the largest magnitudes of keys and values of each attention."""
    run, count = _LargestOperands(graph.model, nodes), 0
    with evaluation_mode(graph.model), torch.no_grad():
        for batch in batches:
            run.run(*bind_inputs(graph, batch, "kv_cache_scheme.data").values())
            count += 1
    if not count:
        raise ExportError("kv_cache_scheme: no batch was given. Give at least one.")
    return {node: (own[KEY], own[VALUE]) for node, own in run.largest.items()}


class _LargestOperands(fx.Interpreter):
    """Run of a graph that stores the largest magnitudes of keys and values."""

    def __init__(self, model: fx.GraphModule, nodes: set[fx.Node]) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.largest = {node: {KEY: 0.0, VALUE: 0.0} for node in nodes}

    def run_node(self, n: fx.Node) -> Any:
        if n in self.largest:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            named = dict(zip(("query", "key", "value"), args, strict=False)) | dict(kwargs)
            for place, name in ((KEY, "key"), (VALUE, "value")):
                largest = float(named[name].abs().max())
                self.largest[n][place] = max(self.largest[n][place], largest)
        return super().run_node(n)
