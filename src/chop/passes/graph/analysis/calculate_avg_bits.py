"""Average number of bits of a graph's weights and activations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.ops import find_op, node_module
from chop.nn.quantizers import Quantizer
from chop.passes.base import PassResult, graph_pass
from chop.passes.rewrite.node_formats import node_quantizers, role_of


@dataclass(frozen=True)
class CalculateAvgBitsArgs:
    """Settings of the pass. `ops`: names of ops to count; by default all quantisable ops."""

    ops: tuple[str, ...] | None = None


@dataclass(frozen=True)
class StoredElements:
    """Number of elements, and the bits of each."""

    elements: int
    bits: float


@graph_pass("calculate_avg_bits_mg_analysis_pass", CalculateAvgBitsArgs, needs=("common",))
def calculate_avg_bits_mg_analysis_pass(graph: MaseGraph, args: CalculateAvgBitsArgs) -> PassResult:
    """Return the average bits of a weight and of an activation, over quantisable ops.

    `info["w_avg_bit"]` counts every parameter once (biases too), `info["data_avg_bit"]` the
    floating-point operands of every call; `info["table"]` has a record per node. A format counts
    its storage, shared exponents included; a float tensor its dtype. None if there is nothing to
    count.
    """
    counted: set[int] = set()
    rows = []
    for node in graph.fx_graph.nodes:
        op = find_op(node, graph.custom_ops)
        if op is None or op.compute is None or (args.ops is not None and op.name not in args.ops):
            continue
        weights, data = list(stored_weights(node, counted)), list(_activations(node))
        rows.append({"name": node.name, "op": op.name, "weights": weights, "data": data})
    table = [row | {key: _average(row[key]) for key in ("weights", "data")} for row in rows]
    return graph, {
        "w_avg_bit": _average([s for row in rows for s in row["weights"]]),
        "data_avg_bit": _average([s for row in rows for s in row["data"]]),
        "table": table,
    }


def _average(stored: list[StoredElements]) -> float | None:
    elements = sum(s.elements for s in stored)
    return sum(s.elements * s.bits for s in stored) / elements if elements else None


def stored_weights(node: fx.Node, counted: set[int]) -> Iterator[StoredElements]:
    """Yield the parameters of a layer that were not counted before."""
    if node.op != "call_module":
        return
    quantizers = node_quantizers(node) or {}
    for name, parameter in node_module(node).named_parameters():
        if id(parameter) not in counted and parameter.is_floating_point():
            counted.add(id(parameter))
            role = role_of(name.removeprefix("parametrizations."), quantizers)
            own = 8.0 * parameter.element_size()
            yield StoredElements(parameter.numel(), _bits(quantizers.get(role or ""), own))


def _bits(quantizer: Quantizer | None, own: float) -> float:
    return own if quantizer is None or quantizer.is_bypass else quantizer.bits


def _activations(node: fx.Node) -> Iterator[StoredElements]:
    """Yield the floating-point tensors that a call reads, except parameters."""
    quantizers = node_quantizers(node) or {}
    values: dict[str, Any] = mase_meta(node).common.args or {}
    for name, value in values.items():
        dtype = value.torch_dtype
        if name.startswith("data_in") and dtype is not None and dtype.is_floating_point:
            quantizer = quantizers.get(role_of(name, quantizers) or "")
            yield StoredElements(math.prod(value.shape), _bits(quantizer, 8.0 * dtype.itemsize))
