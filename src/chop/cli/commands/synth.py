"""`mase synth`: the area of emitted hardware."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from chop import toolchain
from chop.actions.simulation import emitted_interface, synthesize
from chop.cli.commands.emit import EmitConfig, emit, load_emitted, start_hardware
from chop.cli.commands.simulate import is_project
from chop.cli.session import Session


@dataclass(frozen=True, kw_only=True)
class SynthConfig(EmitConfig):
    """Synthesis of a folder that `mase emit` wrote, or of a quantised model.

    `family`: the device family. `trust`: read a folder whose files were not emitted here, or were
    changed since.
    """

    family: Literal["xc7", "xcup", "ecp5", "ice40"] = "xc7"
    trust: bool = False
    out: Path = Path("out/synth")


def run(config: SynthConfig, session: Session) -> dict[str, Any]:
    """Cells of the design, from Yosys."""
    project = Path(str(config.model))
    toolchain.require_package("pyosys")
    if is_project(config.model):
        emitted_interface(project, trust=config.trust)
        session.start_work()
    else:
        given = load_emitted(config, session)
        start_hardware(given, session)
        emit(given.graph, given.data, given.args, session.folder)
        project = session.folder
    with session.console.progress("synthesise"):
        area = synthesize(project, family=config.family, trust=config.trust)
    session.console.say(f"{config.model}: {area}")
    return {"model": config.model, "area": asdict(area)}
