"""Weights that are written at run time, in `design.json` and in the top module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.hw.design.design import Design
from chop.hw.design.reload import PIECE_BITS, PORT, ReloadPort


def describe_reload(design: Design) -> dict[str, object]:
    """Return the memories that can be written at run time, and their port."""
    port = design.reload_port
    if port is None:
        return {}
    rows = [
        {
            "stage": each.stage,
            "memory": each.memory.name,
            "first": each.first,
            "pieces_per_word": each.pieces_per_word,
        }
        for each in design.reloaded_memories
    ]
    return {"reload": {"pieces": port.pieces, "crc": f"{port.crc:08x}", "memories": rows}}


def read_reload(record: Mapping[str, Any]) -> ReloadPort | None:
    """Return the port that a `design.json` describes; None without one."""
    stored = record.get("reload")
    return None if stored is None else ReloadPort(int(stored["pieces"]), int(stored["crc"], 16))


def load_ports(port: ReloadPort | None) -> list[str]:
    """Return the ports that write memories at run time."""
    if port is None:
        return []
    widths = {
        "valid": "",
        "index": f"[{port.index_width - 1}:0] ",
        "word": f"[{PIECE_BITS - 1}:0] ",
    }
    return [f"    input  wire logic {bits}{PORT}_{end}" for end, bits in widths.items()]
