"""The control of a design without its data: which stages, with which twins, feed which.

The cycle model needs no more. `design.json` stores it, so that a simulation from files alone knows
the cycle of every beat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chop.hw.design.cycle_model import TwinRecord


@dataclass(frozen=True, order=True)
class Wire:
    """One end of a stream: output `port` of a stage, or an input of the design."""

    stage: str
    port: int = 0


@dataclass(frozen=True)
class ControlStage:
    """A stage: what feeds it, how many streams leave it, and the chain of its twins."""

    name: str
    sources: tuple[Wire, ...]
    outputs: int
    twins: tuple[TwinRecord, ...]


@dataclass(frozen=True)
class Control:
    """Stages in topological order, and the wires that are the ports of the top module."""

    stages: tuple[ControlStage, ...]
    outputs: tuple[Wire, ...]


def signal_name(wire: Wire, outputs: int) -> str:
    """Return the name inside the top module of a stream that leaves a stage with `outputs`."""
    return f"{wire.stage}_{wire.port}_stream" if outputs > 1 else f"{wire.stage}_stream"


def read_control(record: Mapping[str, Any]) -> Control | None:
    """Return the control in `design.json`; None if a twin could not be stored."""
    stages = [
        ControlStage(
            stage["name"],
            tuple(Wire(*wire) for wire in stage["sources"]),
            len(stage["outputs"]),
            tuple(_frozen(each) for each in stage["twins"]),
        )
        for stage in record["stages"]
        if stage.get("twins") is not None
    ]
    if len(stages) != len(record["stages"]):
        return None
    wires = {name: Wire(name) for name in record["inputs"]}
    for stage in stages:
        for port in range(stage.outputs):
            wire = Wire(stage.name, port)
            wires[signal_name(wire, stage.outputs)] = wire
    return Control(tuple(stages), tuple(wires[s] for s in record["connections"].values()))


def _frozen(value: Any) -> Any:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return tuple(_frozen(each) for each in value) if is_list else value
