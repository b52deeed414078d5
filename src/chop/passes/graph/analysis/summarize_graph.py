"""Cost of a graph: parameters, arithmetic, traffic and memory, per node and in total."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import fx, nn

from chop.ir.graph import MaseGraph
from chop.ir.meta import ValueMeta, mase_meta
from chop.ir.ops import Op, Shapes, find_op, node_module
from chop.ir.trace.effects import is_in_place
from chop.passes.base import PassResult, graph_pass
from chop.passes.report_table import draw_table, show

HEADERS = ("node", "op", "parameters", "macs", "flops", "bytes_moved", "live_bytes")
MODULE_FACTS = ("batch_first",)
"""Module attributes that a cost rule may need in addition to the arguments of the call."""


@dataclass(frozen=True)
class SummarizeGraphArgs:
    """Settings of `summarize_graph_analysis_pass`. `file_name`: a file to write the table to."""

    file_name: Path | None = None


@graph_pass("summarize_graph_analysis_pass", SummarizeGraphArgs, needs=("common",))
def summarize_graph_analysis_pass(graph: MaseGraph, args: SummarizeGraphArgs) -> PassResult:
    """Count parameters, MACs, FLOPs, bytes moved and live activation bytes at the traced shapes.

    `info["table"]` has one record per node, `info["total"]` the sums. Shared parameters count once
    in the total; `activation_peak` is the largest number of live activation bytes. The counts of a
    node are also under `software.cost`.
    """
    live = live_bytes(graph)
    rows = [node_cost(graph, node) | {"live_bytes": live[node]} for node in graph.fx_graph.nodes]
    for node, row in zip(graph.fx_graph.nodes, rows, strict=True):
        mase_meta(node).software.cost = {header: row[header] for header in HEADERS[2:]}
    total = _total(graph, rows)
    last = {"node": "total", "op": "", "live_bytes": total["activation_peak"]} | total
    show("\n" + draw_table([*rows, last], HEADERS), args.file_name)
    return graph, {"table": rows, "total": total}


def node_cost(graph: MaseGraph, node: fx.Node) -> dict[str, Any]:
    """Return the parameters, MACs, FLOPs and bytes moved by one call of `node`."""
    common = mase_meta(node).common
    op = find_op(node, graph.custom_ops)
    shapes = _shapes_of(node, op)
    return {
        "node": node.name,
        "op": common.mase_op,
        "parameters": sum(p.numel() for p in _parameters_of(node)),
        "macs": op.macs_of(shapes) if op else 0,
        "flops": op.flops(shapes) if op else 0,
        "bytes_moved": _bytes_moved(node, op),
    }


def _shapes_of(node: fx.Node, op: Op | None) -> Shapes:
    common = mase_meta(node).common
    roles = op.parameters if op else ()
    tensors = {n: tuple(v.shape or ()) for n, v in (common.args or {}).items() if v.is_tensor}
    config = {n: v.value for n, v in (common.args or {}).items() if not v.is_tensor}
    if node.op == "call_module":
        module = node_module(node)
        config |= {n: getattr(module, n) for n in MODULE_FACTS if hasattr(module, n)}
    is_operand = {n: n.startswith("data_in_") and n not in roles for n in tensors}
    return Shapes(
        inputs=tuple(s for n, s in tensors.items() if is_operand[n]),
        outputs=tuple(tuple(v.shape or ()) for v in (common.results or {}).values() if v.is_tensor),
        parameters={n: s for n, s in tensors.items() if not is_operand[n]},
        config=config,
    )


def _bytes_moved(node: fx.Node, op: Op | None) -> int:
    """Return the bytes of the tensors read and written; a view or a shape query moves none."""
    common = mase_meta(node).common
    written = _bytes((common.results or {}).values())
    shares = shares_storage(node, op) and not is_in_place(node)
    if not node.op.startswith("call_") or not written or shares:
        return 0
    arguments = {n: v for n, v in (common.args or {}).items() if v.is_tensor}
    if op is not None and op.reads_rows:
        indices = [v for n, v in arguments.items() if n not in op.parameters]
        return _bytes(indices) + 2 * written
    return _bytes(arguments.values()) + written


def shares_storage(node: fx.Node, op: Op | None) -> bool:
    """Return True if the result of `node` is in the storage of its operand."""
    common = mase_meta(node).common
    operands = [v for v in (common.args or {}).values() if v.is_tensor]
    if not node.op.startswith("call_") or not operands:
        return False
    if is_in_place(node):
        return True
    one_source = len({v.source for v in operands}) == 1  # an index of tensors makes a copy
    if op is None or not op.is_view or not one_source:
        return False
    changed = any(v.torch_dtype != operands[0].torch_dtype for v in (common.results or {}).values())
    return not changed and not (op.copies_if_strided and not _is_contiguous(operands[0]))


def _is_contiguous(value: ValueMeta) -> bool:
    expected, steps = 1, value.stride or []
    for size, step in zip(reversed(value.shape or []), reversed(steps), strict=False):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _parameters_of(node: fx.Node) -> list[nn.Parameter]:
    if node.op == "call_module":
        return list(node_module(node).parameters())
    owner = node.graph.owning_module
    if node.op != "get_attr" or owner is None:
        return []
    return [p for name, p in owner.named_parameters(remove_duplicate=False) if name == node.target]


def _bytes(values: Iterable[ValueMeta]) -> int:
    return sum(
        math.prod(v.shape or ()) * v.torch_dtype.itemsize
        for v in values
        if v.torch_dtype is not None
    )


def live_bytes(graph: MaseGraph) -> dict[fx.Node, int]:
    """Return the activation bytes alive during each node: made, and needed by it or a later one.

    Views and in-place results are in the storage of their operand. Parameters are not counted.
    """
    nodes = list(graph.fx_graph.nodes)
    owner: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        shares = shares_storage(node, find_op(node, graph.custom_ops))
        owner[node] = owner[node.all_input_nodes[0]] if shares else node
    owners = [n for n in nodes if owner[n] is n and n.op not in ("get_attr", "output")]
    size = {n: _bytes((mase_meta(n).common.results or {}).values()) for n in owners}
    last = {owner[source]: i for i, n in enumerate(nodes) for source in (n, *n.all_input_nodes)}
    live: dict[fx.Node, int] = {}
    alive = 0
    ending: Counter[int] = Counter()
    for i, node in enumerate(nodes):
        if node in size:
            alive += size[node]
            ending[last[node]] += size[node]
        live[node] = alive
        alive -= ending[i]
    return live


def _total(graph: MaseGraph, rows: list[dict[str, Any]]) -> dict[str, int]:
    distinct = {id(p): p.numel() for n in graph.fx_graph.nodes for p in _parameters_of(n)}
    sums = {key: sum(row[key] for row in rows) for key in ("macs", "flops", "bytes_moved")}
    peak = max((row["live_bytes"] for row in rows), default=0)
    return {"parameters": sum(distinct.values()), **sums, "activation_peak": peak}
