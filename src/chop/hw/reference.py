"""The quantised model in PyTorch, from the same metadata that the hardware is made from.

Every operand, parameter and result is quantised to its format; arithmetic is in double precision,
where sums of fixed-point products are exact. This is the third party of the bit-exact contract,
beside the integer golden model and the RTL, and shares no arithmetic with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, fx

from chop.hw import lower as lowering
from chop.ir.arguments import named_arguments
from chop.ir.graph import MaseGraph
from chop.ir.meta import ValueMeta, mase_meta
from chop.ir.ops import find_op, node_module
from chop.nn.quantizers.integer import Integer

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
        if n.op in ("output", "get_attr"):
            return super().run_node(n)
        if n.op == "placeholder":
            return _quantize_result(super().run_node(n), n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        value = self._call(n, _quantized(n, args), dict(kwargs))
        return _quantize_result(value, n)

    def _call(self, n: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        op = find_op(n, self.mase_graph.custom_ops)
        rtl = op.rtl if op else ""
        if rtl in ("wire", "fixed_leaky_relu", "fixed_batch_norm"):
            return _SPECIAL[rtl](n, args)
        if n.op != "call_module":
            kind = getattr(self, n.op)
            return kind(n.target, tuple(args), kwargs)
        module = node_module(n)
        parameters = {
            name: _quantize(p.detach().double(), _argument(n, name))
            for name, p in module.named_parameters(recurse=False)
        }
        for cls in type(module).__mro__:
            if cls.__module__.startswith("torch.nn"):
                plain = cls
                break
        return _forward(plain, module, parameters, args)


def _quantized(n: fx.Node, args: Sequence[Any]) -> list[Any]:
    """The arguments of a call, each tensor in its format: `data_in_0` …, `weight`, `bias`."""
    names = [name for name, _ in named_arguments(n)]
    operands = itertools.count()
    taken = []
    for name, value in zip_longest(names[: len(args)], args):
        if isinstance(value, Tensor):
            role = name if name in PARAMETERS else f"data_in_{next(operands)}"
            meta = _argument(n, role)
            is_meant = meta is None or role in PARAMETERS or lowering.is_applied(n, meta)
            value = _quantize(value.double(), meta if is_meant else None)
        taken.append(value)
    return taken


def _forward(plain: Any, module: Any, parameters: dict[str, Tensor], args: list[Any]) -> Any:
    """The torch layer's forward, with other parameters, and without a twin's own quantisers."""
    twin = plain.__new__(plain)
    twin.__dict__.update(module.__dict__)
    twin.__dict__["_parameters"] = {**module._parameters, **parameters}
    return plain.forward(twin, *args)


def _wire(n: fx.Node, args: list[Any]) -> Any:
    return args[0]


def _leaky_relu(n: fx.Node, args: list[Any]) -> Tensor:
    slope = 0.01
    if n.op == "call_module":
        slope = float(node_module(n).negative_slope)  # type: ignore[arg-type]
    elif meta := (mase_meta(n).common["args"]).get("negative_slope"):
        slope = float(meta.get("value", slope))
    x = args[0]
    coarse = lowering.slope_code(slope) / 2**lowering.SLOPE_FRAC
    return torch.where(x < 0, x * coarse, x)


def _batch_norm(n: fx.Node, args: list[Any]) -> Any:
    scale, shift = lowering.folded_batch_norm(node_module(n))
    x = args[0]
    shape = (1, -1, *[1] * (x.dim() - 2))
    weight = _quantize(torch.from_numpy(scale), _argument(n, "weight")).reshape(shape)
    bias = _quantize(torch.from_numpy(shift), _argument(n, "bias")).reshape(shape)
    return x * weight + bias


_SPECIAL = {"wire": _wire, "fixed_leaky_relu": _leaky_relu, "fixed_batch_norm": _batch_norm}


def _argument(n: fx.Node, name: str) -> ValueMeta | None:
    found: ValueMeta | None = mase_meta(n).common["args"].get(name)
    return found


def _quantize_result(x: Any, n: fx.Node) -> Any:
    """Results are handed on in the format that hardware hands them on in."""
    if not isinstance(x, Tensor):
        return x
    number = lowering.result_format(n)
    return Integer(number.width, number.frac_width).quantize(x)


def _quantize(x: Any, meta: ValueMeta | None) -> Any:
    if not isinstance(x, Tensor) or meta is None or meta.type not in lowering.FIXED_TYPES:
        return x
    assert meta.precision is not None, "a fixed-point tensor without a precision"
    width, frac_width = (int(v) for v in meta.precision[:2])
    return Integer(width, frac_width).quantize(x)
