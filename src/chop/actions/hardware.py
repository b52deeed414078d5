"""Hardware of a quantised graph, checked against its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chop.actions.simulation import TRACED_CYCLES
from chop.arguments import MAPPING, NEW_FOLDER, NONE, an, takes
from chop.errors import HardwareError
from chop.hw.arith.golden import Ints
from chop.hw.flow import synth
from chop.hw.flow.hardware_report import design_html, write_report
from chop.hw.flow.project import DEFAULT_PROJECT, remember_project
from chop.hw.flow.route.flow import DEFAULTS, Routed, RouteOptions, require_tools, route
from chop.hw.flow.route.parts import get_part
from chop.hw.flow.route.place import Progress
from chop.hw.flow.synth import Area
from chop.hw.lower import DesignSpec, Lowered
from chop.hw.lower.design_cache import design_spec
from chop.hw.lower.verify import encoded
from chop.hw.sim.cocotb_run import BENCH
from chop.hw.sim.emit import emit, vector_files, write_files
from chop.hw.sim.exercise import exercise
from chop.hw.sim.simulate import Simulator, Verdict, lint, random_inputs
from chop.hw.sim.waves import draw_handshakes
from chop.ir.graph import MaseGraph
from chop.passes.emit_design import EmitArgs, checked_design
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass

VECTORS = 10
"""Tensors that are drawn for the test bench where no inputs are given."""
SETTINGS = an(DesignSpec, "a DesignSpec")


@dataclass(frozen=True)
class HardwareBuild:
    """A built design, with the verdict of its simulation."""

    directory: Path
    lowered: Lowered
    verdict: Verdict
    area: Area | None
    report: Path
    routed: Routed | None = None

    def _repr_html_(self) -> str:
        """Return the design with its verdict, for notebooks."""
        return design_html(self.lowered.design, self.verdict, self.area)


@takes(HardwareError, project_dir=NEW_FOLDER, parallelism=MAPPING | SETTINGS | NONE)
def build_hardware(
    graph: MaseGraph,
    project_dir: str | Path = DEFAULT_PROJECT,
    *,
    inputs: Any = None,
    parallelism: Mapping[str, Any] | DesignSpec | None = None,
    family: str | None = "xc7",
    waves: bool = False,
    check: bool = True,
    device: str | None = None,
    routing: RouteOptions = DEFAULTS,
    progress: Progress | None = None,
) -> HardwareBuild:
    """Emit, lint, simulate on `inputs` (random by default) and synthesise; write the report.

    `inputs` is a batch, or a tuple with one for each input of the graph. Before anything is
    written the design is compared with the PyTorch model in exact arithmetic, on these and on
    generated inputs (`check=False` skips that). The simulation is the standard run of
    `chop.hw.sim.exercise`.

    `parallelism`: a `DesignSpec`, or arguments of add_hardware_metadata_analysis_pass. `family`
    None skips synthesis. With a `device`, one of `chop.hw.flow.route.parts.PARTS`, the design is
    also placed and routed; `progress` gets messages about that. Raise unless every output bit is
    right.
    """
    if device is not None:
        require_tools(get_part(device))  # before the long work
    graph, _ = add_hardware_metadata_analysis_pass(graph, parallelism)
    lowered, codes = emit_hardware(graph, project_dir, inputs=inputs, check=check)
    hardware = EmitArgs(Path(project_dir)).hardware
    write_files(hardware, {"lint.txt": lint(hardware)})
    simulator = Simulator(lowered.design, hardware, waves=waves)
    verdict = exercise(simulator, codes, trace=TRACED_CYCLES if waves else 0)
    if waves:
        draw_handshakes(verdict, simulator.interface, hardware / "sim" / "handshakes.png")
    area = synth.synthesize(hardware, family=family) if family else None
    routed = None
    if device is not None:
        routing = replace(routing, logic_mhz=routing.logic_mhz or design_spec(graph).clock_mhz)
        routed = _routed(lowered, hardware, device, routing, codes, progress)
    report = write_report(lowered.design, hardware, verdict, area, routed)
    return HardwareBuild(hardware, lowered, verdict, area, report, routed)


NETLIST_VECTORS = 4
"""Number of tensors for the simulation of a netlist, which is slow."""


def _routed(
    lowered: Lowered,
    hardware: Path,
    device: str,
    routing: RouteOptions,
    codes: Mapping[str, Ints],
    progress: Progress | None,
) -> Routed:
    design = lowered.design
    few = {name: each[:NETLIST_VECTORS] for name, each in codes.items()}
    return route(
        hardware,
        design.interface(),
        device,
        routing,
        stages=[stage.name for stage in design.stages],
        vectors=(few, design.golden(few)),
        progress=progress,
    )


def emit_hardware(
    graph: MaseGraph,
    project_dir: str | Path = DEFAULT_PROJECT,
    *,
    inputs: Any = None,
    check: bool = True,
) -> tuple[Lowered, dict[str, Ints]]:
    """Write the RTL, memories and test bench of an annotated graph; return design and input codes.

    The design is compared with the PyTorch model first, as the emit passes do.
    """
    args = EmitArgs(Path(project_dir), check=check)
    lowered = checked_design(graph, args, inputs)
    design = lowered.design
    codes = random_inputs(design, VECTORS) if inputs is None else encoded(lowered, inputs)
    bench = {**vector_files(design, codes), "test/test_top.py": BENCH.read_text()}
    emit(design, args.hardware)
    write_files(args.hardware, bench)
    remember_project(args.project_dir)
    return lowered, codes
