"""Hardware of a quantised graph, checked against its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chop.actions.simulation import TRACED_CYCLES
from chop.arguments import MAPPING, NEW_FOLDER, NONE, takes
from chop.errors import HardwareError
from chop.hw.arith.golden import Ints
from chop.hw.design.clock import DEFAULT_MHZ
from chop.hw.flow import synth
from chop.hw.flow.hardware_report import write_report
from chop.hw.flow.notebook import design_html
from chop.hw.flow.project import DEFAULT_PROJECT, remember_project
from chop.hw.flow.route.flow import DEFAULTS, Routed, RouteOptions, require_tools, route
from chop.hw.flow.route.parts import get_part
from chop.hw.flow.route.place import Progress
from chop.hw.flow.synth import Area
from chop.hw.lower import Lowered
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
"""Number of random tensors for the test bench if there are no inputs."""


@dataclass(frozen=True)
class HardwareBuild:
    """The built design and the verdict of its simulation."""

    directory: Path
    lowered: Lowered
    verdict: Verdict
    area: Area | None
    report: Path
    routed: Routed | None = None

    def _repr_html_(self) -> str:
        """Return the design and the verdict for a notebook."""
        return design_html(self.lowered.design, self.verdict, self.area)


@takes(HardwareError, project_dir=NEW_FOLDER, parallelism=MAPPING | NONE)
def build_hardware(
    graph: MaseGraph,
    project_dir: str | Path = DEFAULT_PROJECT,
    *,
    inputs: Any = None,
    parallelism: Mapping[str, Any] | None = None,
    family: str | None = "xc7",
    waves: bool = False,
    check: bool = True,
    device: str | None = None,
    routing: RouteOptions = DEFAULTS,
    progress: Progress | None = None,
) -> HardwareBuild:
    """Emit, lint, simulate and synthesise a design; write the report.

    `inputs`: a batch, or a tuple with one batch per input of the graph; None: random ones. The
    design is first compared with the PyTorch model in exact arithmetic, on these and on generated
    inputs, unless `check` is False. The simulation is the standard run of `chop.hw.sim.exercise`.
    `parallelism`: arguments of add_hardware_metadata_analysis_pass. `family`: None skips synthesis.
    `device`: one of `chop.hw.flow.route.parts.PARTS`, for which the design is placed and routed;
    `progress` receives messages about that. Raises unless every output bit is right.
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
        clock = (parallelism or {}).get("clock_mhz", DEFAULT_MHZ)
        routing = replace(routing, logic_mhz=routing.logic_mhz or clock)
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
    """Compare a graph with hardware metadata with its model, then write RTL, memories and bench.

    Return the design and the codes of the test inputs.
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
