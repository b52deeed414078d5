"""Two graphs side by side, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chop.report.page_record import PageRecord

FACTS = ("format", "bits", "bytes", "sparsity", "parameters", "flops")
UNCOMPUTED = ("placeholder", "get_attr", "output")


def layer_rows(graphs: Sequence[Mapping[str, Any]]) -> list[PageRecord]:
    """A row for each node that computes or stores something: the facts before and after.

    Nodes are matched by name. `before` is absent where there is one graph alone or the node is
    new; `after` where the node is gone. `is_changed` says that a fact differs.
    """
    if not graphs:
        return []
    after = {n["name"]: n for n in graphs[-1]["nodes"] if _is_layer(n)}
    before = {n["name"]: n for n in graphs[0]["nodes"] if _is_layer(n)} if graphs[1:] else {}
    rows = [_row(name, before.get(name), after.get(name)) for name in {**before, **after}]
    return rows if before else [{**row, "is_changed": False} for row in rows]


def _is_layer(node: Mapping[str, Any]) -> bool:
    works = node.get("flops") or node.get("parameters")
    return bool(works) and node["kind"] not in UNCOMPUTED


def _row(
    name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> PageRecord:
    node = after or before
    assert node is not None, f"row '{name}' is of no node"
    row: PageRecord = {"name": name, "op": node["op"]}
    for side, of in (("before", before), ("after", after)):
        if of is not None:
            row[side] = {fact: of[fact] for fact in FACTS if fact in of}
    return {**row, "is_changed": row.get("before") != row.get("after")}
