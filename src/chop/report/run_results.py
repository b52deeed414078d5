"""Results of other runs as parts of a page: calibration, sharding, place and route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chop.errors import DataError
from chop.report.page_record import PageRecord

WHOLE = "replicate"
"""The strategy of a node that every device has whole."""


def calibration_record(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[PageRecord]:
    """A table for each title that has rows."""
    return [{"title": title, "rows": list(rows)} for title, rows in tables.items() if rows]


def sharding_record(told: Mapping[str, Any] | None) -> PageRecord | None:
    """Mesh, costs and how each node is split, from a `plan.json` or the result of `mase shard`."""
    if told is None:
        return None
    plan = told.get("plan", {})
    mesh = told.get("mesh") or plan.get("mesh", {}).get("shape")
    if not mesh:
        raise DataError("Report.sharding: no mesh. Give the content of a plan.json.")
    return {
        "mesh": list(mesh),
        "cost": list(told.get("cost", ())),
        "verification": told.get("verification"),
        "splits": [_split(node, each) for node, each in plan.get("strategies", {}).items()],
    }


def _split(node: str, strategies: Sequence[Mapping[str, Any]]) -> PageRecord:
    """How one node is split, a word for each dimension of the mesh."""
    names = [str(s["name"]) for s in strategies]
    return {
        "node": node,
        "strategy": ", ".join(names),
        "result": ", ".join(str(s.get("result", "")) for s in strategies),
        "is_whole": all(name == WHOLE for name in names),
    }


def routing_record(told: Mapping[str, Any] | None) -> PageRecord | None:
    """What place and route reached, from a `route.json`.

    `clocks`: MHz by seed. `used` and `available`: cells by kind. `path`: the steps of the slowest
    path, each with `kind`, `nanoseconds`, `where` and `stage`. `part`, `device`, `mhz` of the best.
    """
    if told is None:
        return None
    clocks = told.get("clocks") or {}
    if not clocks:
        raise DataError("Report.routing: no 'clocks' (MHz by seed). Give a route.json.")
    available = told.get("available", {})
    used = {kind.upper(): _used(n, available.get(kind)) for kind, n in told.get("used", {}).items()}
    return {
        "device": told.get("part") or told.get("device"),
        "fmax_mhz": told.get("mhz", max(clocks.values())),
        "seeds": [{"seed": int(seed), "fmax_mhz": mhz} for seed, mhz in clocks.items()],
        "utilisation": used,
        "critical_path": list(told.get("path", ())),
        "simulated": told.get("simulated") or None,
    }


def _used(count: int, available: int | None) -> PageRecord:
    """Cells used, of how many, and their share."""
    return {"used": count, "of": available, "share": count / available if available else None}
