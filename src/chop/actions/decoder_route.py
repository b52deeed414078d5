"""Placement and routing of a decode engine: clock, cells in use, bitstream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chop.hw.decode.decode_emit import TOP, DecodeDesign, emit_engine
from chop.hw.decode.decode_pins import PINS, pins_text
from chop.hw.design.design import Interface
from chop.hw.flow.route.flow import Routed, RouteJob, RouteOptions, require_tools, run_job
from chop.hw.flow.route.netlist import Shell
from chop.hw.flow.route.parts import get_part

DEFAULTS = RouteOptions(seeds=(1,), target_mhz=100.0)


def route_decoder(
    design: DecodeDesign,
    directory: Path,
    part: str,
    options: RouteOptions = DEFAULTS,
    progress: Callable[[str], None] = lambda text: None,
) -> Routed:
    """Emit an engine to `directory`, place and route it there; write `route/<part>`.

    The ports of the engine go to shift registers: the bitstream has no memory controller. Values of
    weights do not matter, so a model without weights (`decode_shape`) gives the same result.
    """
    chosen = get_part(part)
    require_tools(chosen)
    emit_engine(design, directory)
    shell_file = directory.resolve() / f"{PINS}.sv"
    shell_file.write_text(pins_text(design))
    shell = Shell(PINS, (shell_file,))
    ports = Interface(TOP, {}, {}, cycles=1)
    return run_job(RouteJob(directory, ports, chosen, options, (), None, progress, shell))
