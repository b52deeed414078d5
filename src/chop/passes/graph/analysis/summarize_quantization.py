"""Compare each layer before and after quantisation."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import fx, nn

from chop.errors import ConfigError
from chop.files import make_folder
from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op, node_module
from chop.nn.quantized.call_operands import DATA_OUT
from chop.nn.quantized.convert import own_class
from chop.nn.quantized.functional import is_quantized_function
from chop.passes.base import PassResult, graph_pass
from chop.passes.report_table import draw_table, show
from chop.passes.rewrite.node_formats import node_quantizers

HEADERS = ("Name", "Op", "Before", "After", "Changed", "Formats")
COUNTS = ("Op", "Total", "Changed", "Unchanged")


@dataclass(frozen=True)
class SummarizeQuantizationArgs:
    """Settings of `summarize_quantization_analysis_pass`.

    `original_graph`: the graph before; without it the float layer of each is used. `save_dir`: a
    folder for `quantization_layers.csv` and `quantization_ops.csv`.
    """

    save_dir: Path | None = None
    original_graph: Any = None

    def __post_init__(self) -> None:
        original = self.original_graph
        if original is not None and not isinstance(original, MaseGraph):
            kind = type(original).__name__
            raise ConfigError(f"original_graph must be a MaseGraph, got {kind}.")


@graph_pass("summarize_quantization_analysis_pass", SummarizeQuantizationArgs)
def summarize_quantization_analysis_pass(
    graph: MaseGraph, args: SummarizeQuantizationArgs
) -> PassResult:
    """Show every quantisable layer and function before and after, and the changes of each op.

    `info["table"]` has a record per node, `info["ops"]` one per op. Needs no metadata.
    """
    before = {} if args.original_graph is None else _calls(args.original_graph)
    rows = [_record(name, node, before.get(name)) for name, node in _calls(graph).items()]
    ops = []
    for op in dict.fromkeys(row["Op"] for row in rows):
        changed = [bool(row["Changed"]) for row in rows if row["Op"] == op]
        counts = (op, len(changed), sum(changed), len(changed) - sum(changed))
        ops.append(dict(zip(COUNTS, counts, strict=True)))
    for name, records, headers in (("ops", ops, COUNTS), ("layers", rows, HEADERS)):
        show("\n" + draw_table(records, headers))
        if args.save_dir is not None:
            make_folder(args.save_dir)
            with (args.save_dir / f"quantization_{name}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, headers)
                writer.writeheader()
                writer.writerows(records)
    return graph, {"table": rows, "ops": ops}


def _calls(graph: MaseGraph) -> dict[str, fx.Node]:
    """Return the nodes whose op can be quantised."""
    calls = [n for n in graph.fx_graph.nodes if n.op.startswith("call_")]
    ops = {node: find_op(node, graph.custom_ops) for node in calls}
    return {n.name: n for n, op in ops.items() if op is not None and op.compute is not None}


def _record(name: str, node: fx.Node, original: fx.Node | None) -> dict[str, Any]:
    op = find_op(node)
    before = _float_name(node) if original is None else _call_name(original)
    after = _call_name(node)
    return {
        "Name": name,
        "Op": op.name if op else "",
        "Before": before,
        "After": after,
        "Changed": before != after or _formats(node) != (_formats(original) if original else ""),
        "Formats": _formats(node),
    }


def _call_name(node: fx.Node) -> str:
    """Return the name that a node calls: `Linear`, `LinearInteger`, `add`, `add_integer`."""
    if node.op == "call_module":
        return type(node_module(node)).__name__
    return str(getattr(node.target, "__name__", node.target))


def _float_name(node: fx.Node) -> str:
    """Return the name that a node would call without quantisation."""
    if node.op == "call_module":
        module: nn.Module = node_module(node)
        return own_class(type(module)).__name__
    if is_quantized_function(node.target):
        op = find_op(node)
        assert op is not None, f"quantised function of node '{node.name}' has no op"
        return op.name
    return _call_name(node)


def _formats(node: fx.Node) -> str:
    """Return the formats of a node's operands: `data_in mxint8, weight mxint4`."""
    quantizers = node_quantizers(node) or {}
    return ", ".join(
        f"{role} {quantizer}"
        for role, quantizer in quantizers.items()
        if role != DATA_OUT or not quantizer.is_bypass
    )
