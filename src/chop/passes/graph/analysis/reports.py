"""Tables of a graph's nodes: as torch.fx has them, their types, shapes and metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from chop.ir.graph import MaseGraph
from chop.ir.meta import KeyedRecord, ValueMeta, mase_meta
from chop.passes.base import NoArgs, PassResult, graph_pass
from chop.passes.report_table import draw_table, show

GRAPH_HEADERS = ("opcode", "name", "target", "args", "kwargs")
TITLE = "Graph Analysis Report\n\n===================== Graph Summary =====================\n\n"
TYPE_HEADERS = ("Node name", "Fx Node op", "Mase type", "Mase op", "Value type")
SHAPE_HEADERS = ("Node name", "Fx Node op", "Mase op", "Input shapes", "Output shapes")
META_HEADERS = ("Node name", "Fx Node op", "Mase type", "Mase op")
Branch = Literal["common", "hardware", "software", "all"]
BRANCHES = {branch: f"{branch.capitalize()} Param" for branch in ("common", "hardware", "software")}
"""Branches of the metadata with their headers."""


@dataclass(frozen=True)
class ReportGraphArgs:
    """Settings of `report_graph_analysis_pass`. `file_name`: a file to write the report to."""

    file_name: Path | None = None


@graph_pass("report_graph_analysis_pass", ReportGraphArgs)
def report_graph_analysis_pass(graph: MaseGraph, args: ReportGraphArgs) -> PassResult:
    """Show opcode, name, target, args and kwargs of every node; `info["table"]` has the records."""
    cells = [(n.op, n.name, n.target, n.args, n.kwargs) for n in graph.fx_graph.nodes]
    rows = [dict(zip(GRAPH_HEADERS, map(str, each), strict=True)) for each in cells]
    show(TITLE + draw_table(rows, GRAPH_HEADERS, disable_numparse=True), args.file_name)
    return graph, {"table": rows}


@graph_pass("report_node_type_analysis_pass", needs=("common",))
def report_node_type_analysis_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Show the type of each node in torch.fx and in MASE; `info["table"]` has the records."""
    rows = []
    for node in graph.fx_graph.nodes:
        common = mase_meta(node).common
        result = (common.results or {}).get("data_out_0")
        is_computed = node.op not in ("placeholder", "output") and result is not None
        kind = str(result.type) if is_computed and result else "NA"
        cells = (node.name, node.op, common.mase_type, common.mase_op, kind)
        rows.append(dict(zip(TYPE_HEADERS, cells, strict=True)))
    show("\n" + draw_table(rows, TYPE_HEADERS))
    return graph, {"table": rows}


@graph_pass("report_node_shape_analysis_pass", needs=("common",))
def report_node_shape_analysis_pass(graph: MaseGraph, args: NoArgs) -> PassResult:
    """Show the shape of each tensor by its name; `info["table"]` has the records."""
    rows = []
    for node in graph.fx_graph.nodes:
        common = mase_meta(node).common
        cells = (node.name, node.op, common.mase_op, _shapes(common.args), _shapes(common.results))
        rows.append(dict(zip(SHAPE_HEADERS, cells, strict=True)))
    texts = [{header: str(cell) for header, cell in row.items()} for row in rows]
    show("\n" + draw_table(texts, SHAPE_HEADERS))
    return graph, {"table": rows}


def _shapes(values: dict[str, ValueMeta] | None) -> dict[str, list[int]]:
    return {n: list(v.shape or []) for n, v in (values or {}).items() if v.is_tensor}


@dataclass(frozen=True)
class ReportNodeMetaParamArgs:
    """Settings of `report_node_meta_param_analysis_pass`.

    `which`: the branches to show, one name or several. `save_path`: a file to write the table to.
    """

    which: Branch | tuple[Branch, ...] = ("all",)
    save_path: Path | None = None


@graph_pass("report_node_meta_param_analysis_pass", ReportNodeMetaParamArgs, needs=("init",))
def report_node_meta_param_analysis_pass(
    graph: MaseGraph, args: ReportNodeMetaParamArgs
) -> PassResult:
    """Show the requested branches of the metadata, one `key = value` per line.

    `info["table"]` has the records, in which a branch is a mapping from key path to value.
    """
    which = (args.which,) if isinstance(args.which, str) else args.which
    branches = {b: header for b, header in BRANCHES.items() if b in which or "all" in which}
    rows = []
    for node in graph.fx_graph.nodes:
        meta = mase_meta(node)
        cells = (node.name, node.op, meta.common.mase_type, meta.common.mase_op)
        row: dict[str, Any] = dict(zip(META_HEADERS, cells, strict=True))
        rows.append(row | {h: dict(_flatten(meta[branch])) for branch, h in branches.items()})
    headers = (*META_HEADERS, *branches.values())
    texts = [{header: _text(cell) for header, cell in row.items()} for row in rows]
    show("\n" + draw_table(texts, headers, tablefmt="grid"), args.save_path)
    return graph, {"table": rows}


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, KeyedRecord | Mapping):
        for key, each in value.items():
            yield from _flatten(each, f"{path}.{key}" if path else str(key))
    elif value is not None:
        yield path, value


def _text(cell: Any) -> str:
    if not isinstance(cell, dict):
        return str(cell)
    return "\n".join(f"{key} = {_brief(value)}" for key, value in cell.items())


def _brief(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() > 8:
        return f"tensor of shape {list(value.shape)}"
    text = str(value.tolist()) if isinstance(value, Tensor) else str(value)
    is_whole = isinstance(value, Tensor) or len(text) <= 60
    return text if is_whole else text[:57] + "..."
