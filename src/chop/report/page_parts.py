"""Parts of a report's page: layers, calibration, sharding, routing, and text in its notation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from chop.errors import DataError
from chop.report.plan_views import memory_record, timeline_record, traffic_record

PageRecord = dict[str, Any]
"""Plain data that the page holds as JSON and its scripts draw."""
FACTS = ("format", "bits", "bytes", "sparsity", "parameters", "flops")
"""Facts of a layer that the page compares before and after."""
UNCOMPUTED = ("placeholder", "get_attr", "output")
WHOLE = "replicate"
"""Sharding strategy of a node that every device holds completely."""
_FIXED = re.compile(r"\b(U?)Q(\d+)\.(-?\d+)")
_TUPLE = re.compile(r"\((\d+(?:, \d+)*),?\)")


def format_text(text: str) -> str:
    """Return `text` with hardware's names of fixed-point formats in our spelling.

    >>> format_text("Q5.1"), format_text("UQ8.0 narrow"), format_text("mxint4")
    ('fixed5.1', 'ufixed8 narrow', 'mxint4')
    """

    def spelling(match: re.Match[str]) -> str:
        unsigned, width, frac_width = match.groups()
        return f"{unsigned.lower()}fixed{width}" + ("" if frac_width == "0" else f".{frac_width}")

    return _FIXED.sub(spelling, text)


def shape_text(text: str) -> str:
    """Return `text` with its tuples written as shapes.

    >>> shape_text("(2, 64) -> (32,)")
    '2×64 → 32'
    """
    return _TUPLE.sub(lambda m: m[1].replace(", ", "×"), text).replace("->", "→")


def layer_rows(graphs: Sequence[Mapping[str, Any]]) -> list[PageRecord]:
    """Return a row for each node that computes or stores something: its facts before and after.

    Nodes are matched by name. A row has no `before` if there is one graph or the node is new, and
    no `after` if the node was removed.
    """
    if not graphs:
        return []
    after = _layers(graphs[-1])
    before = _layers(graphs[0]) if graphs[1:] else {}
    rows = []
    for name in {**before, **after}:
        sides = {"before": before.get(name), "after": after.get(name)}
        facts = {side: {f: n[f] for f in FACTS if f in n} for side, n in sides.items() if n}
        op = (sides["after"] or before[name])["op"]
        is_changed = bool(before) and facts.get("before") != facts.get("after")
        rows.append({"name": name, "op": op, **facts, "is_changed": is_changed})
    return rows


def _layers(graph: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    nodes = [n for n in graph["nodes"] if n["kind"] not in UNCOMPUTED]
    return {n["name"]: n for n in nodes if n.get("flops") or n.get("parameters")}


def calibration_record(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[PageRecord]:
    """Return a table for each title that has rows."""
    return [{"title": title, "rows": list(rows)} for title, rows in tables.items() if rows]


def sharding_record(result: Mapping[str, Any] | None) -> PageRecord | None:
    """Return mesh, costs and the split of each node, from a `plan.json` or `mase shard`."""
    if result is None:
        return None
    plan = result.get("plan", {})
    mesh = result.get("mesh") or plan.get("mesh", {}).get("shape")
    if not mesh:
        raise DataError("Report.sharding: no mesh. Give the content of a plan.json.")
    return {
        "mesh": list(mesh),
        "cost": list(result.get("cost", ())),
        "verification": result.get("verification"),
        "memory": memory_record(plan),
        "traffic": traffic_record(plan),
        "timeline": timeline_record(
            result.get("pipeline"), training=bool(plan.get("training", True))
        ),
        "splits": [
            {
                "node": node,
                "strategy": ", ".join(str(s["name"]) for s in strategies),
                "result": ", ".join(str(s.get("result", "")) for s in strategies),
                "is_whole": all(s["name"] == WHOLE for s in strategies),
            }
            for node, strategies in plan.get("strategies", {}).items()
        ],
    }


def routing_record(result: Mapping[str, Any] | None) -> PageRecord | None:
    """Return the result of place and route, from a `route.json`.

    `clocks`: MHz by seed. `used` and `available`: cells by kind. `path`: the steps of the slowest
    path, each with `kind`, `nanoseconds`, `where` and `stage`. `part`, `device`, `mhz` of the best.
    """
    if result is None:
        return None
    clocks, available = result.get("clocks") or {}, result.get("available", {})
    if not clocks:
        raise DataError("Report.routing: no 'clocks' (MHz by seed). Give a route.json.")
    cells = {}
    for kind, used in result.get("used", {}).items():
        total = available.get(kind)
        cells[kind.upper()] = {"used": used, "of": total, "share": used / total if total else None}
    return {
        "device": result.get("part") or result.get("device"),
        "fmax_mhz": result.get("mhz", max(clocks.values())),
        "seeds": [{"seed": int(seed), "fmax_mhz": mhz} for seed, mhz in clocks.items()],
        "utilisation": cells,
        "critical_path": list(result.get("path", ())),
        "simulated": result.get("simulated") or None,
    }


def with_links(design: Mapping[str, Any], hardware: Path, page_folder: Path) -> dict[str, Any]:
    """Return the `report.json` of a design in the folder `hardware`, for a page in `page_folder`.

    Each stage whose RTL file exists gets a `link` relative to the page. Links that the file itself
    contains are dropped, because they could point anywhere.
    """
    stages = []
    for stage in design.get("stages", ()):
        row, file = {k: v for k, v in stage.items() if k != "link"}, stage.get("file")
        if isinstance(file, str) and (hardware / file).is_file():
            path = os.path.relpath((hardware / file).resolve(), page_folder.resolve())
            row["link"] = quote(Path(path).as_posix())
        stages.append(row)
    return {**design, "stages": stages}
