"""Plain records of a graph: its nodes, the edges between them, and totals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.ir.meta import MaseMetadata, ValueMeta
from chop.ir.ops import find_op
from chop.passes.graph.analysis.summarize_graph import node_cost
from chop.report.page_parts import PageRecord, format_text
from chop.report.stored_weights import (
    StoredParameter,
    packed_bits,
    packed_weight,
    stored_tensors,
    weight_record,
)

LONGEST = 90
"""Characters of a setting that the page shows."""
COSTS = ("parameters", "macs", "flops", "bytes_moved")
HARDWARE = ("module", "parallelism", "cost", "verilog_param", "interface", "dependence_files")


def graph_record(label: str, graph: MaseGraph) -> PageRecord:
    """Return nodes in order of execution, edges as pairs of their numbers, and totals."""
    nodes = list(graph.fx_graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    stored = {node: stored_tensors(node) for node in nodes}
    records = [node_record(graph, node, stored[node]) for node in nodes]
    edges = [(number[source], number[n]) for n in nodes for source in n.all_input_nodes]
    original = graph.original if graph.original is not None else graph.model
    name = type(original).__name__
    is_unknown = isinstance(original, fx.GraphModule) and name == "GraphModule"
    return {
        "label": label,
        "model": "" if is_unknown else name,
        "nodes": records,
        "edges": edges,
        "totals": _totals(records, stored.values()),
    }


def node_record(graph: MaseGraph, node: fx.Node, stored: list[StoredParameter]) -> PageRecord:
    """Return the facts that the report shows of a node, without unknown ones."""
    meta = node.meta.get("mase")
    meta = meta if isinstance(meta, MaseMetadata) else MaseMetadata()
    op = find_op(node, graph.custom_ops)
    named = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", None)
    target = str(named or node.target)
    record = {
        "name": node.name,
        "kind": node.op,
        "target": target,
        "module": str(node.meta.get("owner", "")),
        "op": meta.common.mase_op or (op.name if op else target),
        "type": meta.common.mase_type or (op.type if op else "implicit_func"),
        **_values(meta),
        **_costs(graph, node),
        **_storage(node, stored),
        "hardware": {k: meta.hardware[k] for k in HARDWARE if meta.hardware.get(k)}
        if meta.hardware.module
        else {},
    }
    record["format"], record["format_bits"] = _own_format(node, record)
    return {key: value for key, value in record.items() if value not in (None, "", [], {})}


def _values(meta: MaseMetadata) -> PageRecord:
    arguments, results = meta.common.args or {}, meta.common.results or {}
    return {
        "args": [_value(name, v) for name, v in arguments.items() if v.is_tensor],
        "results": [_value(name, v) for name, v in results.items() if v.is_tensor],
        "settings": {n: brief(v.value) for n, v in arguments.items() if not v.is_tensor},
    }


def _value(name: str, value: ValueMeta) -> PageRecord:
    record = {
        "name": name,
        "shape": list(value.shape or []),
        "dtype": str(value.torch_dtype).removeprefix("torch."),
        "format": format_text(format_name(value)),
        "format_bits": format_bits(value),
    }
    return record | ({"from": value.source.name} if value.source is not None else {})


def format_name(value: ValueMeta) -> str:
    """Return a number format as one word: `float32`, `fixed8.4`."""
    if value.format is not None:
        return str(value.format)
    sizes = value.precision or []
    if value.type in ("float", "integer", "bool") and len(sizes) == 1:
        return "bool" if value.type == "bool" else f"{value.type}{sizes[0]}"
    return f"{value.type}({', '.join(map(str, sizes))})" if sizes else str(value.type or "")


def format_bits(value: ValueMeta) -> float | None:
    """Return the bits of an element, or None for an index, a mask or an unknown format."""
    bits = getattr(value.format, "bits", None)
    if bits is not None:
        return float(bits)
    sizes = value.precision or []
    is_number = value.type == "float" and len(sizes) == 1
    return float(sizes[0]) if is_number else None


def brief(value: Any) -> str:
    """Return a value as one short line; for a tensor, its shape."""
    if isinstance(value, Tensor):
        return f"tensor of shape {list(value.shape)}"
    text = str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _own_format(node: fx.Node, record: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return format and bits of a node's weight, or else of its first result."""
    packed = packed_weight(node)
    if packed is not None:
        return f"{packed.format}/{packed.group_size}", packed_bits(packed)
    weights = [v for v in record["args"] if v["name"] == "weight"]
    values = [*weights, *record["results"]]
    return (str(values[0]["format"]), values[0]["format_bits"]) if values else ("", None)


def _costs(graph: MaseGraph, node: fx.Node) -> PageRecord:
    meta = node.meta.get("mase")
    if not isinstance(meta, MaseMetadata) or meta.common.results is None:
        return {}
    cost = node_cost(graph, node)
    return {name: cost[name] for name in COSTS if cost[name]}


def _storage(node: fx.Node, stored: list[StoredParameter]) -> PageRecord:
    elements = sum(s.elements for s in stored)
    if not elements:
        return {}
    size = sum(s.bytes for s in stored)
    weight = weight_record(node)
    weights = {"sparsity": weight.pop("sparsity"), "weight": weight} if weight else {}
    return {"parameters": elements, "bytes": size, "bits": 8 * size / elements, **weights}


def _totals(records: list[PageRecord], stored: Iterable[list[StoredParameter]]) -> PageRecord:
    """Return sums over the graph; a parameter that several nodes read counts once."""
    distinct = {s.key: s for tensors in stored for s in tensors}.values()
    parameters, size = sum(s.elements for s in distinct), sum(s.bytes for s in distinct)
    weights = [(r["sparsity"], math.prod(r["weight"]["shape"])) for r in records if "weight" in r]
    elements = sum(count for _, count in weights)
    sparsity = sum(share * count for share, count in weights)
    return {
        "nodes": len(records),
        "parameters": parameters,
        "bytes": size,
        "bits": 8 * size / parameters if parameters else None,
        "sparsity": sparsity / elements if elements else None,
        "flops": sum(r.get("flops", 0) for r in records),
        "macs": sum(r.get("macs", 0) for r in records),
    }


def plain(value: Any) -> Any:
    """Return `value` as JSON data: numbers that are not finite as None, other objects as text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Tensor) and value.numel() != 1:
        return brief(value)
    if hasattr(value, "item"):  # scalars of numpy and torch
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return brief(value) if isinstance(value, torch.dtype) else str(value)
