"""The quantised model in PyTorch, from the same metadata that the hardware is made from.

Every operand, parameter and result is quantised to the format that its node applies; arithmetic is
in double precision, where sums of fixed-point products are exact. Also for formats that were set by
hand, of which the model itself knows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.arguments import named_arguments, operand_nodes
from chop.ir.graph import MaseGraph
from chop.ir.meta import ValueMeta, mase_meta
from chop.ir.ops import find_op, node_module

PARAMETERS = ("weight", "bias")


def run_reference(graph: MaseGraph, *inputs: Tensor) -> Any:
    """Outputs of the quantised model for batches of inputs, in double precision."""
    with torch.no_grad():
        return _Reference(graph).run(*(x.double() for x in inputs))


class _Reference(fx.Interpreter):
    """Runs the graph with every tensor quantised as its metadata says."""

    def __init__(self, graph: MaseGraph) -> None:
        super().__init__(graph.model)
        self.mase_graph = graph

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "get_attr":
            found = super().run_node(n)
            return found.double() if isinstance(found, Tensor) else found
        if n.op == "output":
            return super().run_node(n)
        value = super().run_node(n) if n.op == "placeholder" else self._call(n)
        results = mase_meta(n).common.results or {}
        return _quantize(value, results.get("data_out_0"))

    def _call(self, n: fx.Node) -> Any:
        quantized = self._operands(n)
        args, kwargs = fx.map_arg(
            (n.args, dict(n.kwargs)), lambda a: quantized.get(a, self.env.get(a))
        )
        if n.op != "call_module":
            return getattr(self, n.op)(n.target, args, kwargs)
        return _forward(n, node_module(n), args, kwargs)

    def _operands(self, n: fx.Node) -> dict[fx.Node, Any]:
        """What the operands of a call are quantised to, by the node each comes from."""
        sources = dict(operand_nodes(n, find_op(n, self.mase_graph.custom_ops)))
        sources |= {
            name: given
            for name, given in named_arguments(n)
            if name in PARAMETERS and isinstance(given, fx.Node)
        }
        metas: Mapping[str, ValueMeta] = mase_meta(n).common.args or {}
        return {
            source: _quantize(self.env[source], metas.get(name)) for name, source in sources.items()
        }


def _forward(n: fx.Node, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """The torch layer's forward with quantised parameters, and without a twin's own quantisers."""
    metas: Mapping[str, ValueMeta] = mase_meta(n).common.args or {}
    of_torch = [c for c in type(module).__mro__ if c.__module__.startswith("torch.nn.modules")]
    own = type(module) if of_torch[0] is nn.Module else of_torch[0]  # a layer of the user's
    plain: Any = own
    twin = plain.__new__(plain)
    twin.__dict__.update(module.__dict__)
    twin.__dict__["_parameters"] = {
        name: None if p is None else _quantize(p.detach().double(), metas.get(name))
        for name, p in module._parameters.items()
    }
    twin.__dict__["_buffers"] = {
        name: b.double() if b is not None and b.is_floating_point() else b
        for name, b in module._buffers.items()
    }
    return plain.forward(twin, *args, **kwargs)


def _quantize(x: Any, meta: ValueMeta | None) -> Any:
    if not isinstance(x, Tensor) or meta is None or not meta.is_applied or meta.format is None:
        return x
    return meta.format.quantize(x)
