"""Bitstream of a board project, with Yosys and nextpnr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chop.errors import HardwareError
from chop.hw.boards.board_files import FOLDER, constraints_name
from chop.hw.boards.board_table import Board
from chop.hw.boards.board_top import top_name
from chop.hw.design.design import Interface
from chop.hw.flow.route.flow import Routed, RouteJob, RouteOptions, require_tools, run_job
from chop.hw.flow.route.netlist import Shell
from chop.hw.flow.route.place import Progress


def route_board(
    hardware: Path,
    interface: Interface,
    board: Board,
    options: RouteOptions,
    *,
    stages: Sequence[str] = (),
    progress: Progress | None = None,
) -> Routed:
    """Synthesise, place and route the project in `hardware`; write `route/<board>` there.

    Raise if the design is slower than the clock of the board.
    """
    part = board.open_part()
    if part is None:
        raise HardwareError(f"board '{board.name}': {board.tools} writes its bitstream, not mase.")
    require_tools(part)
    folder = hardware.resolve() / FOLDER
    sources = [*sorted((hardware.resolve() / "axi").glob("*.sv")), *sorted(folder.glob("*.sv"))]
    shell = Shell(top_name(interface), tuple(sources), folder / constraints_name(board))
    aim = replace(options, target_mhz=board.clock_mhz, simulate=False)
    tell = progress or (lambda text: None)
    routed = run_job(
        RouteJob(hardware, interface, part, aim, stages, None, tell, shell, board.name)
    )
    if routed.mhz < board.clock_mhz:
        raise HardwareError(
            f"board '{board.name}': the design reaches {routed.mhz:.1f} MHz, the clock of the "
            f"board is {board.clock_mhz:g} MHz. Try other seeds, or more registers: --clock-mhz."
        )
    return routed
