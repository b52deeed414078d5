"""`mase synth`: the area of emitted hardware."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from chop import toolchain
from chop.actions.simulation import emitted_interface, synthesize
from chop.cli.emitted_design import (
    DesignOptions,
    emit_project,
    is_project,
    load_design_input,
    start_hardware,
)
from chop.cli.session import Session

EXAMPLES = ("mase synth out/emit", "mase synth out/quantize --family ecp5")


@dataclass(frozen=True, kw_only=True)
class SynthConfig(DesignOptions):
    """Synthesis of a folder that `mase emit` wrote, or of a quantised model."""

    family: Annotated[Literal["xc7", "xcup", "ecp5", "ice40"], "Device family."] = "xc7"
    trust: Annotated[
        bool, "Read a folder whose files were emitted elsewhere, or changed since."
    ] = False
    out: Path = Path("out/synth")


def run(config: SynthConfig, session: Session) -> dict[str, Any]:
    """Count the cells of the design with Yosys."""
    project = Path(str(config.model))
    toolchain.require_package("pyosys")
    if is_project(config.model):
        emitted_interface(project, trust=config.trust)
        session.start_work()
    else:
        inputs = load_design_input(config, session)
        start_hardware(inputs, session)
        emit_project(inputs, session.folder)
        project = session.folder
    with session.console.progress("synthesise"):
        area = synthesize(project, family=config.family, trust=config.trust)
    session.console.say(f"{config.model}: {area}")
    return {"model": config.model, "area": asdict(area)}
