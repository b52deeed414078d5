"""A quantised graph as a project for an FPGA board, simulated from UART bits to UART bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from chop.actions.hardware import SETTINGS, HardwareBuild, build_hardware
from chop.arguments import MAPPING, NEW_FOLDER, NONE, takes
from chop.errors import HardwareError
from chop.hw.boards.board_files import emit_board
from chop.hw.boards.board_route import route_board
from chop.hw.boards.board_sim import BoardRun, simulate_board
from chop.hw.boards.board_table import BAUD, Board, get_board
from chop.hw.boards.board_top import payloads
from chop.hw.flow.project import DEFAULT_PROJECT
from chop.hw.flow.route.flow import DEFAULTS, Routed, RouteOptions, require_tools
from chop.hw.flow.route.place import Progress
from chop.hw.lower import DesignSpec
from chop.hw.lower.design_cache import attached_design, design_spec
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass

SIMULATED = 8
"""Inferences of the whole-board simulation."""


@dataclass(frozen=True, kw_only=True)
class BoardOptions:
    """Board."""

    baud: Annotated[int, "Bits per second of the UART."] = BAUD
    bitstream: Annotated[bool, "Place and route the project and write its bitstream."] = True


@dataclass(frozen=True)
class BoardBuild:
    """Project of a design on a board, with the verdicts of its simulations."""

    board: Board
    hardware: HardwareBuild
    run: BoardRun
    routed: Routed | None
    """The routed project; None if the bitstream was not asked for, or is left to the vendor."""


@takes(HardwareError, project_dir=NEW_FOLDER, parallelism=MAPPING | SETTINGS | NONE)
def build_board(
    graph: MaseGraph,
    project_dir: str | Path = DEFAULT_PROJECT,
    *,
    board: str,
    baud: int = BAUD,
    bitstream: bool = True,
    inputs: Any = None,
    parallelism: Mapping[str, Any] | DesignSpec | None = None,
    routing: RouteOptions = DEFAULTS,
    progress: Progress | None = None,
) -> BoardBuild:
    """Build the hardware of a graph and its project for `board`; raise unless all bits are right.

    The whole board is simulated, with the host program on the other end of its UART. `bitstream`
    also places and routes it, if the open tools support the part. Other arguments: see
    `build_hardware`. A board needs one seed that meets its clock, so the default of `routing` is
    one seed.
    """
    tell = progress or (lambda text: None)
    target = get_board(board)
    part = target.open_part() if bitstream else None
    if part is not None:
        require_tools(part)  # before the long work
    target.clocks_per_bit(baud)
    graph, _ = add_hardware_metadata_analysis_pass(graph, parallelism)
    payloads(attached_design(graph).design.interface())
    built = build_hardware(graph, project_dir, inputs=inputs, parallelism=parallelism, family=None)
    emit_board(built.directory, target, baud=baud)
    tell("simulate the board")
    run = simulate_board(built.directory, count=SIMULATED).require_right()
    routed = None
    if part is not None:
        routing = replace(routing, logic_mhz=routing.logic_mhz or design_spec(graph).clock_mhz)
        if routing.seeds == DEFAULTS.seeds:
            routing = replace(routing, seeds=DEFAULTS.seeds[:1])
        design = built.lowered.design
        stages = [stage.name for stage in design.stages]
        interface = design.interface()
        routed = route_board(
            built.directory, interface, target, routing, stages=stages, progress=tell
        )
    return BoardBuild(target, built, run, routed)
