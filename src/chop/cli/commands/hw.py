"""`mase hw`: a quantised model on a part: RTL, simulation, routed clock, bitstream.

With --board it also writes a project for an FPGA board and a host program. With --decode it builds
an engine that generates the tokens of a Llama instead.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from chop.actions.board_project import BoardOptions
from chop.actions.decoder_build import DecoderOptions
from chop.actions.hardware import HardwareBuild, build_hardware
from chop.cli.board_run import run_board
from chop.cli.decoder_run import run_decoder
from chop.cli.emitted_design import HARDWARE, DesignOptions, load_design_input, start_hardware
from chop.cli.names import names
from chop.cli.session import Session
from chop.errors import ConfigError, HardwareError
from chop.hw.design.design import Design
from chop.hw.flow.hardware_report import tensors_per_second
from chop.hw.flow.predict import predict
from chop.hw.flow.route.flow import RouteOptions, records, require_tools
from chop.hw.flow.route.parts import get_part

EXAMPLES = (
    "mase hw out/quantize --dataset digits --device ecp5-85k",
    "mase hw out/quantize --board ulx3s",
    "mase hw ./llama --decode --memory ddr3-800 --part ecp5-85k --prompt 'This movie'",
    "mase hw out/quantize --device ice40-hx8k --max-multipliers 4 --seeds 1,2,3,4,5",
)
DEVICE = "ecp5-85k"
"""Default part if the trial names none."""


@dataclass(frozen=True, kw_only=True)
class HwConfig(DesignOptions):
    """Part."""

    device: Annotated[
        str | None, "FPGA (`mase list parts`). Default: the part of the trial, or ecp5-85k."
    ] = field(default=None, metadata=names("parts", closed=True))
    board: Annotated[
        str | None,
        "Write a project for this board (`mase list boards`): UART bridge, constraints, Makefile "
        "and host program.",
    ] = field(default=None, metadata=names("boards", closed=True))
    project: BoardOptions = field(default_factory=BoardOptions, metadata={"prefix": ""})
    routing: RouteOptions = field(default_factory=RouteOptions, metadata={"prefix": ""})
    decode: Annotated[
        bool,
        "Build an engine that generates the tokens of a Llama, with weights and cache in external "
        "memory; simulate it and compare every logit. It is not routed.",
    ] = False
    decoder: DecoderOptions = field(default_factory=DecoderOptions, metadata={"prefix": ""})
    out: Path = Path("out/hw")

    def __post_init__(self) -> None:
        if not self.decode:
            _refuse(self.decoder, "a decode engine: give --decode too.")
        elif self.device is not None:
            raise ConfigError("device: the FPGA of a decode engine is --part: leave --device out.")
        if self.board is None:
            _refuse(self.project, "a board: give --board too.")
        elif self.device is not None or self.decode:
            other = "--decode" if self.decode else "--device"
            raise ConfigError(f"board: '{self.board}' has its own part: leave {other} out.")


def _refuse(options: DecoderOptions | BoardOptions, purpose: str) -> None:
    """Raise if an option is not the default."""
    defaults = vars(type(options)())
    changed = [name for name, value in vars(options).items() if value != defaults[name]]
    if changed:
        raise ConfigError(f"{changed[0]}: this option is for {purpose}")


def run(config: HwConfig, session: Session) -> dict[str, Any]:
    """Emit, simulate, synthesise, place and route; raise unless every bit is right."""
    if config.decode:
        return run_decoder(config, session)
    if config.board is not None:
        return run_board(config, session)
    inputs = load_design_input(config, session)
    device = config.device or inputs.part or DEVICE
    require_tools(get_part(device))
    start_hardware(inputs, session)
    with session.console.progress("build and simulate") as progress:
        steps = itertools.count(1)
        built = build_hardware(
            inputs.graph,
            session.folder,
            inputs=inputs.test_inputs,
            parallelism=inputs.args,
            family=None,
            device=device,
            routing=config.routing,
            progress=lambda text: progress.to(next(steps), text),
        )
    record = describe_routed(built)
    session.console.say(f"{built.verdict}")
    session.console.say(record["predicted"])
    session.console.say(f"routed: {built.routed}")
    session.console.say(f"{record['tensors_per_second']:,.0f} tensors per second")
    session.console.say(f"slowest path: {' -> '.join(record['path_stages'])}")
    session.console.say(f"bitstream: {config.out / record['bitstream']}")
    report = f"{HARDWARE}/{built.report.name}"
    return {**inputs.facts, "verdict": str(built.verdict), **record, "report": report}


def describe_routed(built: HardwareBuild) -> dict[str, Any]:
    """Return the routed result as plain data."""
    routed = built.routed
    assert routed is not None, "a device was given"
    design = built.lowered.design
    pace = design.cycles()
    return {
        **records(routed),
        "predicted": _predicted(design, routed.part),
        "interval": pace,
        "tensors_per_second": tensors_per_second(routed.mhz, pace),
        "path_stages": list(dict.fromkeys(step.stage for step in routed.path)),
        "bitstream": f"{HARDWARE}/route/{routed.part}/{routed.bitstream.name}",
    }


def _predicted(design: Design, part: str) -> str:
    """Return the prediction; some parts and components have no model."""
    try:
        return str(predict(design, part))
    except HardwareError as error:
        return f"not predicted: {error}"
