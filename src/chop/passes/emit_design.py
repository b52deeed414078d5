"""The design of an annotated graph, and the arguments that all emit passes have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.hw.flow.project import DEFAULT_PROJECT
from chop.hw.lower import Lowered
from chop.hw.lower.design_cache import attached_design, verified_design
from chop.ir.graph import MaseGraph


@dataclass(frozen=True)
class EmitArgs:
    """`project_dir`: files go to its folder `hardware`.

    `check`: first compare the design with the PyTorch model; write nothing if they differ.
    """

    project_dir: Path = DEFAULT_PROJECT
    check: bool = True

    @property
    def hardware(self) -> Path:
        """The hardware directory."""
        return self.project_dir.expanduser() / "hardware"


def checked_design(graph: MaseGraph, args: EmitArgs, inputs: Any = None) -> Lowered:
    """Return the design of an annotated graph; raise if it differs from the model.

    They are compared on `inputs` (a batch or a tuple of them) and on generated ones.
    """
    return verified_design(graph, inputs) if args.check else attached_design(graph)


def lowered_design(graph: MaseGraph) -> Lowered:
    """Return the design of an annotated graph."""
    return attached_design(graph)
