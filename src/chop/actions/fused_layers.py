"""Layers that a server joins to one product, and that therefore must have one format.

To add a server, add a row to `FUSABLE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Row = Mapping[str, Any]

FUSABLE: Mapping[str, Sequence[Sequence[str]]] = {
    "vllm": (
        ("q_proj", "k_proj", "v_proj"),
        ("query", "key", "value"),
        ("gate_proj", "up_proj"),
        ("w1", "w3"),
    ),
}
"""Names of neighbouring modules that a server joins, by server."""
EXPERT = re.compile(r"(.*\.experts)\.[a-z_]+_proj\.\d+")
"""Path of one expert's layer: servers run all experts of a decoder layer as one product."""


class NamedLayer(Protocol):
    """Node or another record of a layer: its name and the path of its module."""

    @property
    def name(self) -> str:
        """Name that tables have."""

    @property
    def target(self) -> Any:
        """Path of the module."""


def fused_groups(nodes: Iterable[NamedLayer], server: str | None) -> dict[str, str]:
    """Return the first node of the group of each node; without a server each is alone."""
    firsts: dict[tuple[str, Any], str] = {}
    return {node.name: firsts.setdefault(_group(node, server), node.name) for node in nodes}


def _group(node: NamedLayer, server: str | None) -> tuple[str, Any]:
    """Return the key that the layers of a group share."""
    path = str(node.target)
    expert = EXPERT.fullmatch(path)
    if server is None:
        return path, node.name
    if expert is not None:
        return expert[1], "experts"
    parent, _, name = path.rpartition(".")
    for names in FUSABLE[server]:
        if name in names:
            return parent, tuple(names)
    return path, node.name


def one_row_per_group(table: Iterable[Row], groups: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a table of sensitivities with one row for each group and format.

    Elements and moves are summed; `bits` are those of an average element.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in table:
        key = (groups[row["node"]], row["format"])
        if key not in rows:
            rows[key] = dict(row) | {"node": key[0]}
            continue
        old = rows[key]
        elements = old["elements"] + row["elements"]
        bits = (old["bits"] * old["elements"] + row["bits"] * row["elements"]) / elements
        moves = np.add(old["moves"], row["moves"])
        loss = float(np.square(moves).sum())
        old |= {"elements": elements, "bits": bits, "moves": moves.tolist(), "loss": loss}
    return list(rows.values())
