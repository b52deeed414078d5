"""From emitted RTL to a routed design: clock over several seeds, cells in use, bitstream."""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from chop import toolchain
from chop.errors import HardwareError
from chop.files import read_json
from chop.hw.arith.golden import Ints
from chop.hw.design.clock import DEFAULT_MHZ
from chop.hw.design.design import Interface
from chop.hw.flow.route.netlist import (
    Netlist,
    Shell,
    make_netlist,
    pins_shell,
    simulate_netlist,
)
from chop.hw.flow.route.parts import Part, get_part
from chop.hw.flow.route.place import PathStep, Placement, Progress, place
from chop.hw.flow.route.tools import run_yowasp

SEEDS = (1, 2, 3)
TARGET_MHZ = 200.0
SIMULATED_CELLS = 12_000
"""Cells up to which netlists are simulated by default."""
Vectors = tuple[Mapping[str, Ints], Mapping[str, Ints]]
"""Codes of the inputs, and of the outputs that they give."""


@dataclass(frozen=True)
class Routed:
    """A design on a part. The bitstream is that of the fastest seed, `seed`."""

    part: str
    device: str
    seed: int
    clocks: Mapping[int, float]
    """MHz by seed."""
    used: Mapping[str, int]
    available: Mapping[str, int]
    cells: Mapping[str, int]
    packed: int
    """Flip-flops that lie in multipliers."""
    path: tuple[PathStep, ...]
    """The slowest path of the fastest seed."""
    bitstream: Path
    simulated: str
    """Verdict of the simulated netlist; empty without a simulation."""

    @property
    def mhz(self) -> float:
        """Clock of the bitstream, in MHz."""
        return self.clocks[self.seed]

    def __str__(self) -> str:
        low, high = min(self.clocks.values()), max(self.clocks.values())
        used = ", ".join(
            f"{count} of {self.available[kind]} {kind.upper()}" for kind, count in self.used.items()
        )
        return f"{self.mhz:.1f} MHz on {self.part} ({low:.1f}-{high:.1f} over seeds), {used}"


def require_tools(part: Part) -> None:
    """Raise an error that names the extra unless the tools for `part` are installed."""
    for package in ("pyosys", part.family.package):
        toolchain.require_package(package)


@dataclass(frozen=True)
class RouteOptions:
    """Routing."""

    seeds: Annotated[tuple[int, ...], "Seeds of placement, one run each; the fastest is used."] = (
        SEEDS
    )
    target_mhz: Annotated[float, "Clock that placement aims at, in MHz."] = TARGET_MHZ
    simulate: Annotated[bool | None, "Simulate the netlist. Default: only if it is small."] = None
    jobs: Annotated[int, "Number of seeds that are placed in parallel."] = 1
    logic_mhz: Annotated[
        float | None,
        "Clock that logic is mapped for, in MHz; a faster one takes more LUTs. Default: the clock "
        "for which registers are chosen.",
    ] = None

    def __post_init__(self) -> None:
        if not self.seeds:
            raise HardwareError("route: 'seeds' is empty. Allowed: one number or more.")
        for name, mhz in (("target_mhz", self.target_mhz), ("logic_mhz", self.logic_mhz)):
            if mhz is not None and not mhz > 0:
                raise HardwareError(f"route: '{name}' must be above 0 MHz, got {mhz:g}.")
        if self.jobs < 1:
            raise HardwareError(f"route: 'jobs' must be 1 or more, got {self.jobs}.")


@dataclass(frozen=True)
class RouteJob:
    """A design to route, and the folders of its files."""

    hardware: Path
    interface: Interface
    part: Part
    options: RouteOptions
    stages: Sequence[str]
    vectors: Vectors | None
    tell: Progress
    shell: Shell | None = None
    """The module that is placed; None puts each stream on pins."""
    folder: str = ""
    """Name of the folder of the result; default: that of the part."""

    @property
    def draft(self) -> Path:
        """The folder of unfinished work."""
        return self.final.with_name(f".{self.final.name}.{os.getpid()}")

    @property
    def final(self) -> Path:
        """The folder that appears when everything is done."""
        return self.hardware / "route" / (self.folder or self.part.name)


DEFAULTS = RouteOptions()


def route(
    hardware: Path,
    interface: Interface,
    device: str,
    options: RouteOptions = DEFAULTS,
    *,
    stages: Sequence[str] = (),
    vectors: Vectors | None = None,
    progress: Progress | None = None,
) -> Routed:
    """Synthesise, place and route the RTL emitted in `hardware`; write `route/<device>` there.

    With `vectors` the netlist is simulated on them before it is placed. `stages` are stage names of
    the design, for the slowest path. The folder appears when everything is done.
    """
    part = get_part(device)
    require_tools(part)
    return run_job(
        RouteJob(
            hardware, interface, part, options, stages, vectors, progress or (lambda text: None)
        )
    )


def run_job(job: RouteJob) -> Routed:
    """Run a job; its folder appears when everything is done."""
    shutil.rmtree(job.draft, ignore_errors=True)
    job.draft.mkdir(parents=True)
    try:
        routed = _run(job)
        shutil.rmtree(job.final, ignore_errors=True)
        job.draft.replace(job.final)
    finally:
        shutil.rmtree(job.draft, ignore_errors=True)
    return routed


def _run(job: RouteJob) -> Routed:
    part, work = job.part, job.draft
    job.tell("synthesise")
    logic_mhz = job.options.logic_mhz or DEFAULT_MHZ
    shell = job.shell or pins_shell(job.interface, work)
    netlist = make_netlist(job.hardware, shell, part, work, logic_mhz)
    require_room(netlist, part)
    simulated = _simulate(job, netlist)
    placements = _place(job, netlist)
    best = max(placements, key=lambda placement: placement.mhz)
    job.tell("bitstream")
    bitstream = _pack(best, part, work / f"{job.interface.name}{part.family.bitstream_suffix}")
    routed = Routed(
        part=part.name,
        device=part.device,
        seed=best.seed,
        clocks={p.seed: round(p.mhz, 2) for p in placements},
        used=best.used,
        available=part.has(),
        cells=netlist.cells,
        packed=netlist.packed,
        path=best.path,
        bitstream=job.final / bitstream.name,
        simulated=simulated,
    )
    _keep(work, routed)
    return routed


def _place(job: RouteJob, netlist: Netlist) -> list[Placement]:
    """Return a placement for each seed, in their order."""
    target, pins = job.options.target_mhz, None
    if job.shell is not None and job.shell.constraints is not None:
        pins = job.shell.constraints.name  # tools see only files below their folder
        shutil.copy(job.shell.constraints, job.draft / pins)
    with ThreadPoolExecutor(job.options.jobs) as pool:  # each waits for a child process
        runs = [
            pool.submit(
                place, netlist, job.part, seed, target, job.stages, job.tell, constraints=pins
            )
            for seed in job.options.seeds
        ]
        return [run.result() for run in runs]


def _simulate(job: RouteJob, netlist: Netlist) -> str:
    """Return the verdict of the simulated netlist; empty without a simulation."""
    is_small = sum(netlist.cells.values()) <= SIMULATED_CELLS
    is_simulated = is_small if job.options.simulate is None else job.options.simulate
    if job.vectors is None or not is_simulated:
        return ""
    job.tell("simulate the netlist")
    return str(simulate_netlist(netlist, job.interface, job.part, job.draft, job.vectors))


def require_room(netlist: Netlist, part: Part) -> None:
    """Raise unless the part has enough cells of each kind; those counted are surely needed."""
    for kind, cells in _NEEDED.items():
        needed = sum(n for cell, n in netlist.cells.items() if cell.startswith(cells))
        if needed > part.has()[kind]:
            raise HardwareError(
                f"{part.name}: the design needs {needed} {kind.upper()}, the part has "
                f"{part.has()[kind]}. Take a larger part, or fold more: --max-multipliers."
            )


_NEEDED = {
    "lut": ("LUT4", "SB_LUT4"),
    "ff": ("TRELLIS_FF", "SB_DFF"),
    "dsp": ("MULT18", "SB_MAC16"),
    "bram": ("DP16KD", "SB_RAM"),
}
"""Kind of resource -> prefixes of the cells that occupy one each."""


def _pack(best: Placement, part: Part, bitstream: Path) -> Path:
    family = part.family
    arguments = [best.file.name, bitstream.name]
    if family.packer == "ecppack":
        arguments = ["--compress", "--input", best.file.name, "--bit", bitstream.name]
    done = run_yowasp(family.package, family.packer, arguments, best.file.parent)
    if done.returncode or not bitstream.exists():
        raise HardwareError(f"{family.packer} failed ({done.returncode}): {done.stdout[-1000:]}")
    return bitstream


KEPT = ("*.sv", "*.log", "*.bit", "*.bin", "route.json")


def _keep(work: Path, routed: Routed) -> None:
    """Leave only the files for users in the folder, and a record of the result."""
    record = {**records(routed), "bitstream": routed.bitstream.name}
    (work / "route.json").write_text(json.dumps(record, indent=2) + "\n")
    files = {path for pattern in KEPT for path in work.glob(pattern)}
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path not in files:
            path.unlink()


def records(routed: Routed) -> dict[str, Any]:
    """Return the result in plain data."""
    spread = sorted(routed.clocks.values())
    return {
        **asdict(routed),
        "clocks": {str(seed): mhz for seed, mhz in routed.clocks.items()},
        "bitstream": str(routed.bitstream),
        "mhz": routed.mhz,
        "mhz_worst": spread[0],
        "mhz_median": statistics.median(spread),
    }


def read_routed(hardware: Path, device: str) -> dict[str, Any] | None:
    """Return the record that `route` wrote for a part, or None."""
    path = hardware / "route" / device / "route.json"
    return read_json(path, HardwareError) if path.exists() else None
