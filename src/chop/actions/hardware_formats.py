"""Fixed-point formats for hardware, chosen from the values of a float model.

`observe_values` runs the model once and stores operands and results of its nodes;
`fixed_point_rules` returns arguments of quantize_transform_pass for any widths.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from chop.errors import HardwareError
from chop.hw.lower import LOWERINGS
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import tensors_in
from chop.ir.ops import Op, Operand, find_op, node_module, parameter_role
from chop.ir.ops.integer_kernels import undefined

DATA_IN, WEIGHT, BIAS, DATA_OUT = "data_in", "weight", "bias", "data_out"
OUTPUT_WIDTH = 16
"""Bits of the model's outputs: wide enough that different scores stay different."""
SAMPLES = 1 << 14
"""Largest number of stored values per operand and batch, evenly spaced."""
MASKED = 2.0**20
"""Magnitude from which values come from masks; they are ignored."""
EXTRA_PLACES = 4
"""Positions of the binary point that are tried beyond the one that clips almost nothing."""
EXACT_OPS = ("add", "sub", "mul", "embedding")
"""Ops without weights, with exact results, which are rounded by their readers."""


class Widths(Protocol):
    """Function that returns the bits of the operand `role` of a node."""

    def __call__(self, node: str, role: str) -> int: ...


@dataclass(frozen=True)
class ObservedNode:
    """Values of the operands, by role, and of the result of a node that rounds."""

    op: Op
    values: Mapping[str, Tensor]
    places: dict[tuple[str, int], int] = field(default_factory=dict, compare=False)
    """Cached fractional bits by role and width, for the trials of a search."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles with a format: the operands, and the result unless it is exact."""
        is_exact = self.op.name in EXACT_OPS or _has_products(self.op)
        return tuple(role for role in self.values if role != DATA_OUT or not is_exact)

    @property
    def is_weighted(self) -> bool:
        """True if it multiplies by weights, which have their own widths."""
        return WEIGHT in self.values and _has_products(self.op)

    def frac_width(self, role: str, width: int) -> int:
        """Return the fractional bits of an operand with the least square error."""
        if (role, width) not in self.places:
            self.places[role, width] = best_frac_width(self.values[role], width)
        return self.places[role, width]


def _has_products(op: Op) -> bool:
    """Return True if the op sums products with a weight, as a linear layer does."""
    return op.macs is not None and WEIGHT in op.parameters


Observed = Mapping[str, ObservedNode]
"""Observed nodes by name, in the order of execution."""


def observe_values(graph: MaseGraph, batches: Iterable[Any]) -> dict[str, ObservedNode]:
    """Return the operands and results of the nodes that round, on `batches`.

    A batch is a tensor, a tuple with one tensor per input, or a mapping by name.
    """
    recorder = _ValueRecorder(graph)
    was_training = graph.model.training
    graph.model.eval()
    for batch in batches:
        with torch.no_grad():
            recorder.run(*_arguments(graph, batch))
    graph.model.train(was_training)
    if not recorder.values:
        raise HardwareError("the model has no node whose operands could be put in fixed point.")
    return {
        name: ObservedNode(
            op, {role: torch.cat(parts) for role, parts in recorder.values[name].items()}
        )
        for name, op in recorder.ops.items()
        if name in recorder.values
    }


def _arguments(graph: MaseGraph, batch: Any) -> Sequence[Any]:
    if isinstance(batch, Mapping):
        names = [str(n.target) for n in graph.fx_graph.find_nodes(op="placeholder")]
        return [batch.get(name) for name in names]
    return batch if isinstance(batch, tuple | list) else (batch,)


class _ValueRecorder(fx.Interpreter):
    """Interpreter that stores values of the nodes that round, by role."""

    def __init__(self, graph: MaseGraph) -> None:
        super().__init__(graph.model)
        ops = {node.name: find_op(node, graph.custom_ops) for node in graph.fx_graph.nodes}
        self.ops = {name: op for name, op in ops.items() if op is not None and _rounds(op)}
        self.values: dict[str, dict[str, list[Tensor]]] = {}

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        result = super().run_node(n)
        if n.name in self.ops:
            is_first = n.name not in self.values
            values = self.values.setdefault(n.name, {})
            for role, value in self._operands(n, args, kwargs, is_first):
                values.setdefault(role, []).append(_some(value))
            for value in [v for v in tensors_in(result) if v.is_floating_point()][:1]:
                values.setdefault(DATA_OUT, []).append(_some(value))
        return result

    def _operands(
        self, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any], is_first: bool
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the operands of a call and, the first time, the parameters of a layer."""
        compute = self.ops[node.name].compute
        assert compute is not None, "an op that rounds computes"
        is_layer = node.op == "call_module"
        values = {
            operand: args[operand.position]
            if operand.position < len(args)
            else kwargs.get(operand.argument)
            for operand in (compute.inputs if is_layer else compute.operands)
        }
        has_number = any(isinstance(value, int | float) for value in values.values())
        for operand, value in values.items():
            if isinstance(value, int | float):  # numbers differ in size from tensors
                yield operand.role, torch.tensor([float(value)])
            elif isinstance(value, Tensor) and value.is_floating_point():
                yield operand.role if has_number else _role(operand), value
        if is_layer and is_first:
            for name, value in node_module(node).named_parameters(recurse=False):
                yield parameter_role(name), value


def _rounds(op: Op) -> bool:
    """Return True if an op rounds; a rectifier or a maximum selects one of its inputs."""
    is_monotone = op.rtl in LOWERINGS and LOWERINGS[op.rtl].is_monotone
    return op.compute is not None and not is_monotone


def _role(operand: Operand) -> str:
    """Return the role of an operand: summands share one, the second factor is a weight."""
    if operand.argument in (WEIGHT, BIAS):
        return operand.argument
    return operand.prefer or DATA_IN


def _some(values: Tensor) -> Tensor:
    """Return at most `SAMPLES` values, evenly spaced, with the largest and the smallest."""
    flat = values.detach().double().reshape(-1).cpu()
    flat = flat[flat.abs() < MASKED]
    if len(flat) <= SAMPLES:
        return flat
    return torch.cat([flat[:: -(-len(flat) // SAMPLES)], flat.max()[None], flat.min()[None]])


def best_frac_width(values: Tensor, width: int) -> int:
    """Return the fractional bits of signed `width`-bit numbers with the least square error.

    >>> best_frac_width(torch.tensor([0.5, -0.25, 0.75]), 8)
    7
    """
    top = max(float(values.abs().max()), 2.0**-12) if values.numel() else 1.0
    whole = math.ceil(math.log2(top))
    most = 2.0 ** (width - 1)
    errors = {}
    for frac in range(width - 2 - whole, width - 1 - whole + EXTRA_PLACES):
        codes = (values * 2.0**frac).round().clamp(-most, most - 1)
        errors[frac] = float((codes * 2.0**-frac - values).square().mean())
    return min(errors, key=lambda frac: (errors[frac], frac))


def fixed_point_rules(graph: MaseGraph, observed: Observed, widths: Widths) -> dict[str, Any]:
    """Return arguments of quantize_transform_pass that give every rounding node its `widths`.

    Ops with an integer arithmetic (softmax, norms, tables) use it, as hardware does. Outputs of the
    model have `OUTPUT_WIDTH` bits.
    """
    output = next(iter(graph.fx_graph.find_nodes(op="output")))
    leaving = {node.name for node in output.all_input_nodes}
    rules: dict[str, Any] = {"by": "name", "default": {"config": {"name": None}}}
    for name, node in observed.items():
        config = _config(node, {role: widths(name, role) for role in node.roles})
        if name in leaving:
            config |= _setting(node, DATA_OUT, OUTPUT_WIDTH)
        rules[name] = {"config": config}
    return rules


def _config(node: ObservedNode, widths: Mapping[str, int]) -> dict[str, Any]:
    config: dict[str, Any] = {"name": "integer"}
    for role, width in widths.items():
        config |= _setting(node, role, width)
    compute = node.op.compute
    if compute is not None and compute.integer not in (None, undefined):
        config["arithmetic"] = "integer"
    if node.op.name == "softmax":  # from 0 to just below 1
        width = config[f"{DATA_OUT}_width"]
        config |= {f"{DATA_OUT}_frac_width": width, f"{DATA_OUT}_is_signed": False}
    return config


def _setting(node: ObservedNode, role: str, width: int) -> dict[str, int]:
    return {f"{role}_width": width, f"{role}_frac_width": node.frac_width(role, width)}
