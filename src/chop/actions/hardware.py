"""From a quantised graph to proved hardware in one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.simulation import TRACED_CYCLES
from chop.hw import synth
from chop.hw.emit import write_files
from chop.hw.exercise import exercise
from chop.hw.lower import Lowered
from chop.hw.project import DEFAULT_PROJECT
from chop.hw.report import write_report
from chop.hw.simulate import Simulator, Verdict, lint, random_inputs
from chop.hw.synth import Area
from chop.hw.waves import draw_handshakes
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.passes.graph.hardware import EmitArgs, lowered_design
from chop.passes.graph.transforms import (
    emit_bram_transform_pass,
    emit_cocotb_transform_pass,
    emit_internal_rtl_transform_pass,
    emit_verilog_top_transform_pass,
)


@dataclass(frozen=True)
class HardwareBuild:
    """What was built and what the simulation said of it."""

    directory: Path
    lowered: Lowered
    verdict: Verdict
    area: Area | None
    report: Path


def build_hardware(
    graph: MaseGraph,
    project_dir: str | Path = DEFAULT_PROJECT,
    *,
    inputs: Any = None,
    parallelism: Mapping[str, Any] | None = None,
    family: str | None = "xc7",
    waves: bool = False,
) -> HardwareBuild:
    """Emit, lint, simulate on `inputs` (random ones where None) and synthesise; write the report.

    The simulation is the standard run of `chop.hw.exercise`.

    `parallelism` are arguments of add_hardware_metadata_analysis_pass; `family` None leaves out
    synthesis. Raises unless every output bit is right.
    """
    graph, _ = add_hardware_metadata_analysis_pass(graph, parallelism)
    args: dict[str, Any] = {"project_dir": Path(project_dir)}
    for emit in (
        emit_verilog_top_transform_pass,
        emit_internal_rtl_transform_pass,
        emit_bram_transform_pass,
    ):
        emit(graph, args)
    emit_cocotb_transform_pass(graph, {**args, "inputs": inputs})
    lowered = lowered_design(graph)
    hardware = EmitArgs(Path(project_dir)).hardware
    write_files(hardware, {"lint.txt": lint(hardware)})
    codes = random_inputs(lowered.design, 10) if inputs is None else lowered.encode(inputs)
    simulator = Simulator(lowered.design, hardware, waves=waves)
    verdict = exercise(simulator, codes, trace=TRACED_CYCLES if waves else 0)
    if waves:
        draw_handshakes(verdict, simulator.interface, hardware / "sim" / "handshakes.png")
    area = synth.synthesize(hardware, family=family) if family else None
    report = write_report(lowered.design, hardware, verdict, area)
    return HardwareBuild(hardware, lowered, verdict, area, report)
