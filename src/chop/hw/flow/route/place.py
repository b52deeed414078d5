"""Place and route with nextpnr: a run for each seed, and the facts of its report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chop.errors import HardwareError
from chop.hw.flow.route.netlist import Netlist
from chop.hw.flow.route.parts import Part
from chop.hw.flow.route.tools import run_yowasp

Progress = Callable[[str], None]


@dataclass(frozen=True)
class PathStep:
    """One piece of a path: through a cell, or along a net."""

    kind: str
    nanoseconds: float
    where: str
    """The net, or the cell; as far as the name is the design's."""
    stage: str


@dataclass(frozen=True)
class Placement:
    """Result of one seed."""

    seed: int
    mhz: float
    used: Mapping[str, int]
    path: tuple[PathStep, ...]
    """The slowest path from register to register."""
    file: Path
    """The routed design, in the text form of the family."""


def place(
    netlist: Netlist,
    part: Part,
    seed: int,
    target_mhz: float,
    stages: Sequence[str],
    progress: Progress | None = None,
    *,
    constraints: str | None = None,
) -> Placement:
    """Place and route `netlist`; `stages` are stage names of the design, for the slowest path.

    `constraints`: name of a file with the pins, in the folder of the netlist.
    """
    work = netlist.file.parent
    routed, report = f"seed{seed}{part.family.routed_suffix}", f"seed{seed}.json"
    arguments = [
        *part.options, "--json", netlist.file.name, part.family.routed_option, routed,
        "--report", report, "--seed", str(seed), "--freq", f"{target_mhz:g}",
        "--timing-allow-fail",
    ]  # fmt: skip
    arguments += [] if constraints is None else [part.family.pins_option, constraints]
    listen = None if progress is None else _Milestones(seed, progress)
    package = part.family.package
    done = run_yowasp(package, package.removeprefix("yowasp_"), arguments, work, listen)
    (work / f"seed{seed}.log").write_text(done.stdout)
    if done.returncode or not (work / report).exists():
        errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR")]
        raise HardwareError(
            f"{part.name}: nextpnr found no placement (seed {seed}): "
            f"{' '.join(errors[:3]) or done.stdout[-500:]}"
        )
    facts = json.loads((work / report).read_text())
    return Placement(
        seed,
        slowest_clock(facts),
        used_cells(facts, part),
        slowest_path(facts, stages),
        work / routed,
    )


class _Milestones:
    """Progress of a run, from the output of nextpnr."""

    _STAGES = (
        (re.compile(r"Info: Packing"), "packing"),
        (re.compile(r"Info: +at (?:initial|iteration)"), "placing"),
        (re.compile(r"Info: Routing\b|Info: Setting up routing"), "routing"),
    )

    def __init__(self, seed: int, progress: Progress) -> None:
        self.seed, self.progress, self.stage = seed, progress, ""

    def __call__(self, line: str) -> None:
        for pattern, stage in self._STAGES:
            if pattern.match(line) and stage != self.stage:
                self.stage = stage
                self.progress(f"seed {self.seed}: {stage}")


def slowest_clock(report: Mapping[str, Any]) -> float:
    """Return the clock that was reached, in MHz."""
    clocks = [float(clock["achieved"]) for clock in report["fmax"].values()]
    if not clocks:
        raise HardwareError("nextpnr: the design has no path from register to register.")
    return min(clocks)


def used_cells(report: Mapping[str, Any], part: Part) -> dict[str, int]:
    """Return cells in use by kind."""
    cells = report["utilization"]
    return {kind: int(cells.get(c, {}).get("used", 0)) for kind, c in part.family.cells.items()}


def slowest_path(report: Mapping[str, Any], stages: Sequence[str]) -> tuple[PathStep, ...]:
    """Return the slowest path of the clock, each step with its stage of the design."""
    clocked = [p for p in report["critical_paths"] if "<async>" not in (p["from"], p["to"])]
    if not clocked:
        return ()
    longest = max(clocked, key=lambda path: sum(step["delay"] for step in path["path"]))
    return condensed([_step(step, stages) for step in longest["path"]])


def condensed(path: Sequence[PathStep]) -> tuple[PathStep, ...]:
    """Return the path with cells that follow each other without a wire merged, as a carry chain."""
    steps: list[PathStep] = []
    for step in path:
        if step.kind == "routing" and not step.nanoseconds:
            continue
        if steps and step.kind == steps[-1].kind == "logic":
            total = round(steps[-1].nanoseconds + step.nanoseconds, 3)
            steps[-1] = replace(step, nanoseconds=total)
        else:
            steps.append(step)
    return tuple(steps)


def _step(record: Mapping[str, Any], stages: Sequence[str]) -> PathStep:
    where = record.get("net") or record["to"]["cell"]
    stage = stage_of(where, stages)
    return PathStep(record["type"], round(float(record["delay"]), 3), readable(where), stage)


def readable(name: str) -> str:
    """Return the design's part of a name, without additions of Yosys and nextpnr.

    >>> readable("u_top.u_fc1.level_q_TRELLIS_FF_Q_DI_LUT4_Z")
    'u_top.u_fc1.level_q'
    """
    return re.sub(r"[_$](LUT4|TRELLIS|CCU2|PFUMX|L6MUX21|MULT18X18D|DP16KD|SB_).*", "", name)


def stage_of(name: str, stages: Sequence[str]) -> str:
    """Return the stage of a net or a cell; the module's own name for what is between.

    >>> stage_of("u_top.u_fc1_weight_source.address_q[0]", ["fc1", "fc1_relu"])
    'fc1'
    >>> stage_of("u_data_in_0_pins.left_q", ["fc1"])
    'pins'
    """
    match = re.match(r"u_\w+?\.u_(\w+)", name)
    if match is None:
        return "pins"
    within = match[1]
    names = [s for s in stages if within == s or within.startswith(f"{s}_")]
    return max(names, key=len, default=within)
