"""What the metadata of every node holds, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.ir.meta import KeyedRecord, mase_meta
from chop.passes.base import PassResult, graph_pass
from chop.passes.report_table import draw_table, show

Branch = Literal["common", "hardware", "software", "all"]
BRANCHES = ("common", "hardware", "software")
FIXED_HEADERS = ("Node name", "Fx Node op", "Mase type", "Mase op")


@dataclass(frozen=True)
class ReportNodeMetaParamArgs:
    """`which`: the branches to show, one name or several; `save_path`: also write it there."""

    which: Branch | tuple[Branch, ...] = ("all",)
    save_path: Path | None = None


@graph_pass("report_node_meta_param_analysis_pass", ReportNodeMetaParamArgs, needs=("init",))
def report_node_meta_param_analysis_pass(
    graph: MaseGraph, args: ReportNodeMetaParamArgs
) -> PassResult:
    """Show each asked-for branch of the metadata, one `key = value` a line.

    `info["table"]` has the records, in which a branch is a mapping from key path to value.
    """
    which = (args.which,) if isinstance(args.which, str) else args.which
    branches = [b for b in BRANCHES if b in which or "all" in which]
    rows = [_record(node, branches) for node in graph.fx_graph.nodes]
    headers = (*FIXED_HEADERS, *(_header(b) for b in branches))
    show("\n" + draw_table([_as_text(r) for r in rows], headers, tablefmt="grid"), args.save_path)
    return graph, {"table": rows}


def _header(branch: str) -> str:
    return f"{branch.capitalize()} Param"


def _record(node: fx.Node, branches: list[str]) -> dict[str, Any]:
    meta = mase_meta(node)
    cells = (node.name, node.op, meta.common.mase_type, meta.common.mase_op)
    return dict(zip(FIXED_HEADERS, cells, strict=True)) | {
        _header(branch): dict(_flatten(meta[branch])) for branch in branches
    }


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, KeyedRecord | Mapping):
        for key, each in value.items():
            yield from _flatten(each, f"{path}.{key}" if path else str(key))
    elif value is not None:
        yield path, value


def _as_text(row: dict[str, Any]) -> dict[str, str]:
    return {
        header: "\n".join(f"{k} = {_brief(v)}" for k, v in cell.items())
        if isinstance(cell, dict)
        else str(cell)
        for header, cell in row.items()
    }


def _brief(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() > 8:
        return f"tensor of shape {list(value.shape)}"
    if isinstance(value, Tensor):
        return str(value.tolist())
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
