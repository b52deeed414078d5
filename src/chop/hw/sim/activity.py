"""Switching activity of a simulated design: toggles of the nets of each stage.

Tensors stream through at full rate. The first ones only fill the design; counted is from where
they have left to where the last one leaves. Every bit of every net counts once per change between
two clock edges. The share of a stage in all toggles is an estimate of its share of the dynamic
energy of data: every net has the same capacitance there, and the clock, glitches, logic inside an
operator, memory arrays and leakage are left out.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chop.errors import HardwareError
from chop.files import read_json
from chop.hw.arith.golden import Ints
from chop.hw.design.design import Interface
from chop.hw.design.reload import PORT
from chop.hw.design.stream import to_bytes
from chop.hw.sim.stage_clocks import member
from chop.hw.sim.verilate import build_program, call

COUNTER = Path(__file__).parent / "activity.h"
TENSORS = 32
"""Most tensors that are counted."""
FILE = "sim/activity.json"
OUTSIDE = "ports and wires"
"""Row of nets that belong to no stage."""
NOTE = (
    "estimate: every toggle counts alike; without clock tree, glitches, logic inside operators, "
    "memory arrays and leakage"
)
_PATIENCE = 10_000
"""Cycles without a beat, beyond those of a tensor, after which a design stands still."""
_CLOCKS = ("clk", "rst")


@dataclass(frozen=True)
class StageActivity:
    """Toggles of the nets of one stage."""

    stage: str
    bits: int
    """Bits of all nets."""
    data_toggles: int
    """Toggles of nets of several bits: numbers and counters."""
    control_toggles: int
    """Toggles of single bits: handshakes and flags."""

    @property
    def toggles(self) -> int:
        """All toggles."""
        return self.data_toggles + self.control_toggles


@dataclass(frozen=True)
class Activity:
    """Toggles of all stages while `tensors` tensors left the design, in `cycles` cycles."""

    tensors: int
    cycles: int
    stages: tuple[StageActivity, ...]

    def stage(self, name: str) -> StageActivity:
        """Return the row of a stage."""
        return next(row for row in self.stages if row.stage == name)

    def rows(self) -> list[dict[str, Any]]:
        """Return one record per stage, with its share of all toggles."""
        total = sum(row.toggles for row in self.stages) or 1
        return [
            {
                "stage": row.stage,
                "bits": row.bits,
                "data toggles / tensor": round(row.data_toggles / self.tensors, 1),
                "control toggles / tensor": round(row.control_toggles / self.tensors, 1),
                "toggles / bit / cycle": round(row.toggles / max(row.bits * self.cycles, 1), 4),
                "energy share (estimate)": f"{row.toggles / total:.1%}",
            }
            for row in self.stages
        ]


@dataclass(frozen=True)
class Net:
    """One net: its toggles, its bits and its hierarchical names."""

    toggles: int
    bits: int
    names: tuple[str, ...]


def count_activity(directory: Path, interface: Interface, inputs: Mapping[str, Ints]) -> Activity:
    """Stream `inputs` through the RTL in the hardware directory and return the toggles of stages.

    `inputs`: codes, one array of tensors per port. At least one tensor fills the design, so a
    single one is sent twice.
    """
    sent = _enough(inputs, interface.in_flight)
    tensors = len(next(iter(sent.values()))) - interface.in_flight
    cycles, nets = count_nets(directory, interface, sent)
    stages = [str(stage["name"]) for stage in _design(directory)["stages"]]
    return Activity(tensors, cycles, by_stage(nets, stages))


def count_nets(
    directory: Path, interface: Interface, sent: Mapping[str, Ints]
) -> tuple[int, list[Net]]:
    """Return the cycles from where the first tensor has left, and the toggles of every net."""
    program = _program(directory, interface)
    with tempfile.TemporaryDirectory() as scratch:
        request, response = Path(scratch, "request"), Path(scratch, "response")
        request.write_bytes(_request(interface, sent))
        call([str(program), str(request), str(response)], cwd=directory)
        first, *lines = response.read_text().splitlines()
    return int(first), [_net(line) for line in lines]


def store(activity: Activity, directory: Path) -> Path:
    """Write the activity to `sim/activity.json` of the hardware directory."""
    path = directory / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"note": NOTE, **asdict(activity)}, indent=1) + "\n")
    return path


def _design(directory: Path) -> Any:
    return read_json(directory / "design.json", HardwareError)


def _enough(inputs: Mapping[str, Ints], together: int) -> dict[str, Ints]:
    """Return the first tensors: those that fill the design, and up to `TENSORS` more."""
    count = len(next(iter(inputs.values())))
    tensors = max(min(count, TENSORS + together) // together, 2) * together
    return {name: codes[np.arange(tensors) % count] for name, codes in inputs.items()}


def _request(interface: Interface, sent: Mapping[str, Ints]) -> bytes:
    parts = [struct.pack("<Q", interface.cycles * interface.in_flight + _PATIENCE)]
    for name, stream in interface.inputs.items():
        beats = to_bytes(sent[name], stream)
        parts += [struct.pack("<Q", len(beats)), bytes(beats)]
    tensors = len(next(iter(sent.values())))
    for stream in interface.outputs.values():
        parts.append(struct.pack("<2Q", tensors * stream.beats, interface.in_flight * stream.beats))
    return b"".join(parts)


# -- the program -----------------------------------------------------------------------------------


def _program(directory: Path, interface: Interface) -> Path:
    """Return the counting program of the RTL in `directory`, built if a source changed."""
    work = directory.resolve() / "sim"
    work.mkdir(exist_ok=True)
    driver = work / "activity.cpp"
    driver.write_text(_driver_text(interface))
    sources = sorted((directory.resolve() / "rtl").glob("*.sv"))
    return build_program(interface.name, sources, driver, work, kind="activity")


def _driver_text(interface: Interface) -> str:
    def ports(names: Sequence[str]) -> str:
        rows = []
        for name in names:
            data, valid, ready = (f"top.{member(f'{name}{end}')}" for end in _ENDS)
            rows.append(f"{{&{data}, sizeof({data}), &{valid}, &{ready}}}")
        return "{" + ", ".join(rows) + "}"

    digest = hashlib.sha256(COUNTER.read_bytes()).hexdigest()[:16]
    loads = f"  top.{PORT}_valid = 0;\n" if interface.reload else ""
    text = _DRIVER.replace("INPUTS", ports(list(interface.inputs)))
    text = text.replace("OUTPUTS", ports(list(interface.outputs)))
    return text.replace("LOADS", loads).replace("DIGEST", digest)


_ENDS = ("", "_valid", "_ready")
_DRIVER = """// with activity.h DIGEST
#include "Vtop.h"
#include "activity.h"

int main(int argc, char** argv) {
  if (argc != 3) return 1;
  VerilatedContext context;
  Vtop top{&context};
LOADS  return count_activity(top, context, {INPUTS, OUTPUTS}, argv);
}
"""


# -- nets ------------------------------------------------------------------------------------------


def _net(line: str) -> Net:
    toggles, bits, *names = line.split()
    return Net(int(toggles), int(bits), tuple(names))


def by_stage(nets: Sequence[Net], stages: Sequence[str]) -> tuple[StageActivity, ...]:
    """Return the toggles of each stage, and of nets outside all of them.

    A net between stages belongs to the stage that drives it.
    """
    sums = {name: [0, 0, 0] for name in (*stages, OUTSIDE)}
    for net in nets:
        if any(name.rpartition(".")[2] in _CLOCKS for name in net.names):
            continue
        total = sums[owner(net, stages)]
        total[0] += net.bits
        total[1 if net.bits > 1 else 2] += net.toggles
    return tuple(StageActivity(name, *total) for name, total in sums.items() if total[0])


def owner(net: Net, stages: Sequence[str]) -> str:
    """Return the stage that a net belongs to, or `OUTSIDE`."""
    places = [_place(name, stages) for name in net.names]
    inside = [(stage, pin) for stage, pin in places if stage]
    driven = [stage for stage, pin in inside if _is_driven(pin)]
    named = driven or [stage for stage, _ in inside]
    return named[0] if named else OUTSIDE


def _place(name: str, stages: Sequence[str]) -> tuple[str, str]:
    """Return the stage in which a net has this name, and its name there; empty outside."""
    match = re.search(r"\.u_(\w+)\.(.*)", name)
    if match is None:
        return "", ""
    named = [s for s in stages if match[1] == s or match[1].startswith(f"{s}_")]
    return max(named, key=len, default=""), match[2]


def _is_driven(pin: str) -> bool:
    """Return whether a stage drives its pin."""
    if pin.endswith("_ready"):
        return pin.startswith(("data_in", "weight", "bias"))
    return pin.startswith("data_out")
