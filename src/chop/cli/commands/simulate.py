"""`mase simulate`: emitted hardware against the model, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chop.actions.hardware import build_hardware
from chop.actions.simulation import emitted_interface, require_simulator, simulate
from chop.cli.commands.emit import (
    HARDWARE,
    EmitConfig,
    load_emitted,
    start_hardware,
    test_inputs,
)
from chop.cli.output import settle
from chop.cli.session import Session


@dataclass(frozen=True, kw_only=True)
class SimulateConfig(EmitConfig):
    """Simulation of a folder that `mase emit` wrote, or of a quantised model.

    `simulator`: verilator, or the emitted bench in cocotb. `waves`: keep waveforms of the first
    cycles. `trust`: run a folder whose files were not emitted here, or were changed since; RTL is a
    program, which can run commands.
    """

    simulator: Literal["verilator", "cocotb"] = "verilator"
    waves: bool = False
    trust: bool = False
    out: Path = Path("out/simulate")


def run(config: SimulateConfig, session: Session) -> dict[str, Any]:
    """Raises unless every bit is right."""
    if is_project(config.model):
        return _simulate_project(Path(str(config.model)), config, session)
    given = load_emitted(config, session)
    require_simulator(config.simulator)
    start_hardware(given, session)
    inputs = test_inputs(given.graph, given.data)
    with session.console.progress("emit, build and simulate"):
        built = build_hardware(
            given.graph,
            session.folder,
            inputs=inputs,
            parallelism=given.args,
            family=None,
            waves=config.waves,
        )
        if config.simulator == "cocotb":
            simulate(session.folder, simulator="cocotb", waves=config.waves)
    session.console.say(f"{built.verdict}")
    report = f"{HARDWARE}/{built.report.name}"
    return {**given.facts, **_verdict(built.verdict), "report": report}


def is_project(model: str | None) -> bool:
    """Whether the folder `model` holds emitted hardware."""
    if model is None:
        return False
    settle(Path(model))
    return (Path(model) / HARDWARE / "design.json").is_file()


def _simulate_project(project: Path, config: SimulateConfig, session: Session) -> dict[str, Any]:
    emitted_interface(project, trust=config.trust)
    require_simulator(config.simulator)
    session.start_work()
    with session.console.progress("build and simulate"):
        verdict = simulate(
            project, simulator=config.simulator, waves=config.waves, trust=config.trust
        )
    session.console.say(f"{project}: {verdict}")
    return {"project": str(project), **_verdict(verdict)}


def _verdict(verdict: Any) -> dict[str, Any]:
    """The facts of a verdict, as far as the simulator tells them."""
    names = ("tensors", "compared", "mismatches", "cycles", "is_exact")
    return {name: getattr(verdict, name) for name in names if hasattr(verdict, name)} | {
        "verdict": str(verdict)
    }
