"""`mase simulate`: emitted hardware against the model, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from chop.actions.hardware import build_hardware
from chop.actions.simulation import (
    emitted_interface,
    measure_activity,
    require_simulator,
    simulate,
)
from chop.cli.emitted_design import (
    HARDWARE,
    DesignOptions,
    is_project,
    load_design_input,
    start_hardware,
)
from chop.cli.session import Session
from chop.errors import ConfigError
from chop.hw.interfaces.axi_wrapper import emit_axi
from chop.hw.sim.activity import NOTE

EXAMPLES = ("mase simulate out/emit", "mase simulate out/quantize --dataset digits --waves")


@dataclass(frozen=True, kw_only=True)
class SimulateConfig(DesignOptions):
    """Simulation of a folder that `mase emit` wrote, or of a quantised model."""

    simulator: Annotated[
        Literal["verilator", "cocotb", "axi", "board"],
        "Verilator, the emitted test bench in cocotb, that of the AXI wrapper (`emit --axi`), or "
        "the whole board with its host program (`hw --board`).",
    ] = "verilator"
    waves: Annotated[bool, "Store waveforms of the first cycles."] = False
    activity: Annotated[
        bool, "Count the toggles of each stage, with an estimate of its share of the energy."
    ] = False
    trust: Annotated[
        bool,
        "Run a folder whose files were emitted elsewhere, or changed since. RTL is a program and "
        "can run commands.",
    ] = False
    out: Path = Path("out/simulate")


def run(config: SimulateConfig, session: Session) -> dict[str, Any]:
    """Simulate the design; raise unless every bit equals the model's."""
    if is_project(config.model):
        return _simulate_project(Path(str(config.model)), config, session)
    if config.simulator == "board":
        raise ConfigError(
            "simulator: 'board' runs a folder of `mase hw … --board NAME`; the model has none yet."
        )
    inputs = load_design_input(config, session)
    require_simulator(config.simulator)
    start_hardware(inputs, session)
    with session.console.progress("emit, build and simulate"):
        built = build_hardware(
            inputs.graph,
            session.folder,
            inputs=inputs.test_inputs,
            parallelism=inputs.args,
            family=None,
            waves=config.waves,
        )
        if config.simulator == "axi":
            emit_axi(session.folder / HARDWARE)
        if config.simulator != "verilator":
            simulate(session.folder, simulator=config.simulator, waves=config.waves)
    session.console.say(f"{built.verdict}")
    report = f"{HARDWARE}/{built.report.name}"
    facts = {**inputs.facts, **_verdict(built.verdict), "report": report}
    return {**facts, **_activity(session.folder, config, session)}


def _simulate_project(project: Path, config: SimulateConfig, session: Session) -> dict[str, Any]:
    emitted_interface(project, trust=config.trust)
    require_simulator(config.simulator)
    session.start_work()
    with session.console.progress("build and simulate"):
        verdict = simulate(
            project, simulator=config.simulator, waves=config.waves, trust=config.trust
        )
    session.console.say(f"{project}: {verdict}")
    facts = {"project": str(project), **_verdict(verdict)}
    return {**facts, **_activity(project, config, session)}


def _activity(project: Path, config: SimulateConfig, session: Session) -> dict[str, Any]:
    """Return and print the toggles of each stage, if they are asked for."""
    if not config.activity:
        return {}
    with session.console.progress("count toggles"):
        activity = measure_activity(project, trust=config.trust)
    rows = activity.rows()
    session.console.say(f"switching activity over {activity.tensors} tensors ({NOTE}):")
    session.console.table(rows)
    return {"activity": {"tensors": activity.tensors, "cycles": activity.cycles, "stages": rows}}


def _verdict(verdict: Any) -> dict[str, Any]:
    """Return the facts of a verdict; cocotb reports fewer than Verilator."""
    names = ("tensors", "compared", "mismatches", "cycles", "is_exact")
    facts = {name: getattr(verdict, name) for name in names if hasattr(verdict, name)}
    return {**facts, "verdict": str(verdict)}
