"""What the emit passes share: the design of an annotated graph, and where its files go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.hw.design import Wire
from chop.hw.lower import Lowered, Parallelism, lower
from chop.hw.project import DEFAULT_PROJECT
from chop.hw.verify import verify
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta


@dataclass(frozen=True)
class EmitArgs:
    """`project_dir`: files go to its folder `hardware`.

    `check`: first compare the design with the PyTorch model, and write nothing where they differ.
    """

    project_dir: Path = DEFAULT_PROJECT
    check: bool = True

    @property
    def hardware(self) -> Path:
        """The hardware directory."""
        return self.project_dir.expanduser() / "hardware"


def checked_design(graph: MaseGraph, args: EmitArgs, inputs: Any = None) -> Lowered:
    """The design that the hardware metadata describes; raises where it is not the model's.

    It is compared on `inputs` (a batch or a tuple of them) and on generated ones.
    """
    lowered = lowered_design(graph)
    if args.check:
        verify(graph, lowered, inputs)
    return lowered


def lowered_design(graph: MaseGraph) -> Lowered:
    """The design that the hardware metadata of `graph` describes."""
    lanes, depths = {}, {}
    for node in graph.fx_graph.nodes:
        hardware = mase_meta(node).hardware
        if hardware.parallelism is not None:
            lanes[node.name] = (hardware.parallelism[0], hardware.parallelism[1])
        for end, depth in (hardware.interface or {}).get("fifo_depths", {}).items():
            stage, port = end.rsplit(".", 1)
            depths[Wire(stage, int(port))] = depth
    return lower(graph, Parallelism(1, lanes), depths=depths)
