"""`mase hw --board`: the project of a design on an FPGA board."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

from chop.actions.board_project import BoardBuild, BoardOptions, build_board
from chop.cli.emitted_design import HARDWARE, load_design_input, start_hardware
from chop.cli.session import Session
from chop.hw.boards.board_files import FOLDER
from chop.hw.boards.board_table import get_board
from chop.hw.flow.route.flow import records, require_tools

COMMANDS = {
    "open": ("make -C {folder} prog",),
    "vivado": ("cd {hardware} && vivado -mode batch -source board/vivado.tcl",),
    "quartus": ("cd {hardware} && quartus_sh -t board/quartus.tcl",),
}
"""Tools of a board -> commands that build and load the bitstream."""


def run_board(config: Any, session: Session) -> dict[str, Any]:
    """Build the project, simulate the whole board and write its bitstream."""
    options: BoardOptions = config.project
    board = get_board(config.board)
    board.clocks_per_bit(options.baud)
    part = board.open_part() if options.bitstream else None
    if part is not None:
        require_tools(part)
    inputs = load_design_input(config, session)
    start_hardware(inputs, session)
    with session.console.progress(f"project for {board.name}") as progress:
        steps = itertools.count(1)
        built = build_board(
            inputs.graph,
            session.folder,
            board=board.name,
            baud=options.baud,
            bitstream=options.bitstream,
            inputs=inputs.test_inputs,
            parallelism=inputs.args,
            routing=config.routing,
            progress=lambda text: progress.to(next(steps), text),
        )
    return {**inputs.facts, **_tell(built, config, session)}


def _tell(built: BoardBuild, config: Any, session: Session) -> dict[str, Any]:
    """Print the result and the next commands; return it as plain data."""
    say, board = session.console.say, built.board
    verdict, folder = str(built.hardware.verdict), f"{config.out / HARDWARE}/{FOLDER}"
    say(verdict)
    say(f"{board.name}: {built.run}")
    record: dict[str, Any] = {"verdict": verdict, "board": board.name, "run": asdict(built.run)}
    if built.routed is not None:
        say(f"routed: {built.routed}; the board runs at {board.clock_mhz:g} MHz")
        bitstream = f"{HARDWARE}/route/{board.name}/{built.routed.bitstream.name}"
        say(f"bitstream: {config.out / bitstream}")
        record |= {**records(built.routed), "bitstream": bitstream}
    for command in COMMANDS[board.tools]:
        say(f"next: {command.format(folder=folder, hardware=config.out / HARDWARE)}")
    say(f"then: python {folder}/host.py /dev/ttyUSB0")
    return record
