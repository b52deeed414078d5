"""Many small designs in one simulator: Verilator makes each, one program holds them all.

Compiling the headers costs as much as ten small designs, and a process start is not free either, so
a batch is built and run at once. A machine needs Verilator and g++, nothing else.
"""

import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chop import toolchain
from chop.hw.design.design import Design
from chop.hw.design.stream import from_bytes, storage_bytes, to_bytes
from chop.hw.sim import verilate
from chop.hw.sim.emit import emit

DRIVER = Path(__file__).parent / "rtl_batch.h"
FLAGS = ("-std=gnu++17", "-O0", "-w", "-pthread")
RUNTIME = ("verilated", "verilated_threads")


@dataclass(frozen=True)
class Job:
    """A design, codes to send and number of beats to expect by port, a seed for the stalls."""

    design: Design
    inputs: Mapping[str, np.ndarray]
    beats: Mapping[str, int]
    seed: int


@dataclass(frozen=True)
class Timing:
    """When the ports of a design offer and take beats."""

    name: str
    valid: int = 256
    """Cycles of 256 in which a source offers a beat."""
    ready: int = 256
    """Cycles of 256 in which a sink takes one."""
    burst: int = 1
    """Cycles for which each of these decisions holds."""
    rest: int = 0
    """Cycles without a beat at any port before a source offers the next."""
    middle: int = 0
    """Cycle of a reset, after which everything is sent again; 0: none."""
    eighths: int = 8
    """Part of the tensors that are sent."""

    def packed(self) -> bytes:
        """Return the numbers as the driver reads them."""
        numbers = (self.valid, self.ready, self.burst, self.rest, self.middle, self.eighths)
        return struct.pack("<6Q", *numbers)


REST = 48
"""Cycles: more than the registers of one stage, so that gaps fill a pipeline."""
SLOW = 26
"""Of 256 cycles: a tenth."""


def timings(job: Job) -> list[Timing]:
    """Return the runs of a job: mild stalls and full rate, then slow and bursty ports.

    Gaps between beats take the storage of pipelines away, which full rate hides. Slow runs have
    fewer tensors, so that all runs take about as long as the first two.
    """
    rng = np.random.default_rng(job.seed)
    pace = job.design.cycles()
    valid, ready = (int(v) for v in rng.choice([90, 150, 220, 256], 2))
    middle, burst = int(rng.integers(1, 3 * pace + 10)), int(rng.integers(3, 4 * pace + 24))
    return [
        Timing("under stalls, after a reset", valid, ready, middle=middle),
        Timing("at full rate"),
        Timing("with a slow source", SLOW, eighths=4),
        Timing("with one beat at a time", rest=REST, eighths=2),
        Timing("with bursts", 128, 128, burst, eighths=4),
        Timing("with slow sinks", ready=SLOW, eighths=4),
    ]


@dataclass(frozen=True)
class Run:
    """Results by port, whether all came, and whether the handshakes held."""

    name: str
    outputs: dict[str, np.ndarray]
    is_done: bool
    violations: int
    surplus: int


def run_batch(jobs: Sequence[Job], folder: Path, threads: int = 1) -> list[list[Run]]:
    """Return the runs of each job, one for each of its `timings`."""
    folder = folder.resolve()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda pair: _make(pair[1], folder, pair[0]), enumerate(jobs)))
    program = _compile(jobs, folder)
    _call([str(program)], folder)
    return [_read(job, folder / f"d{k}" / "response") for k, job in enumerate(jobs)]


def _make(job: Job, folder: Path, number: int) -> None:
    place = emit(job.design, folder / f"d{number}")
    (place / "request").write_bytes(_request(job))
    tool = toolchain.verilator()
    command = [str(tool.program), "--cc", "-Wno-fatal", "-Wno-lint", "--top-module", "top"]
    command += ["--prefix", f"Vd{number}", "-O3", "--x-assign", "fast", "--x-initial", "unique"]
    command += ["--Mdir", str(folder / "made")]
    command += [str(p) for p in sorted((place / "rtl").glob("*.sv"))]
    _call(command, folder, tool.environment())


def _request(job: Job) -> bytes:
    chosen = timings(job)
    # a tensor passes a shared block several times before a beat moves at the ports
    patience = 8 * job.design.cycles() + 200 + 2000 * (job.design.passes - 1)
    parts = [struct.pack("<3Q", 2 * job.seed + 1, patience, len(chosen))]
    parts += [timing.packed() for timing in chosen]
    for name, stream in job.design.inputs.items():
        beats = to_bytes(job.inputs[name], stream)
        parts += [struct.pack("<Q", len(beats)), beats.tobytes()]
    parts += [struct.pack("<Q", job.beats[name]) for name in job.design.outputs]
    return b"".join(parts)


def _compile(jobs: Sequence[Job], folder: Path) -> Path:
    made = folder / "made"
    lines = [f'#include "{DRIVER}"']
    calls = []
    for number, job in enumerate(jobs):
        lines.append("#undef VL_PCH_INCLUDED")  # Verilator allows one design in a source file
        lines += [f'#include "{p.name}"' for p in sorted(made.glob(f"Vd{number}*.cpp"))
                  if _belongs(p.name, number)]  # fmt: skip
        calls.append(_drive_text(number, job, folder))
    body = "\n".join(calls)
    unit = made / "unit.cpp"
    unit.write_text("\n".join(lines) + f"\nint main() {{\n{body}\n  return 0;\n}}\n")
    include = toolchain.verilator().include
    places = ["-I", str(made), "-I", str(include), "-I", str(include / "vltstd")]
    switches = ["-DVM_TRACE=0", "-DVM_TRACE_FST=0", "-DVM_COVERAGE=0", "-DVM_SC=0"]
    flags = [*FLAGS, *switches, *places]
    runtime = verilate._runtime("quick")
    objects = [str(runtime / f"{name}.o") for name in RUNTIME]
    program = folder / "batch"
    compiler = str(toolchain.program("g++"))
    _call([compiler, *flags, str(unit), *objects, "-o", str(program)], folder)
    return program


def _belongs(name: str, number: int) -> bool:
    rest = name.removeprefix(f"Vd{number}")
    return not rest[0].isdigit()  # Vd1.cpp, Vd1__Syms.cpp, and not Vd12.cpp


def _drive_text(number: int, job: Job, folder: Path) -> str:
    def fill(side, names):
        rows = [f"{{{{&t.{n}, sizeof(t.{n}), &t.{n}_valid, &t.{n}_ready}}}}" for n in names]
        return "".join(f"    {side}.push_back(Stream{row});\n" for row in rows)

    kind = f"Vd{number}"
    filled = fill("a", job.design.inputs) + fill("b", job.design.outputs)
    head = f"[]({kind}& t, std::vector<Stream>& a, std::vector<Stream>& b)"
    return f'  drive<{kind}>("{folder}/d{number}", {head} {{\n{filled}  }});'


def _read(job: Job, response: Path) -> list[Run]:
    told = response.read_bytes()
    offset, runs = 0, []
    for timing in timings(job):
        is_done, violations, _ = struct.unpack_from("<3Q", told, offset)
        offset += 24
        outputs, surplus = {}, 0
        for name, stream in job.design.output_streams().items():
            (count,) = struct.unpack_from("<Q", told, offset)
            size = storage_bytes(stream.beat_width)
            rows = np.frombuffer(told, np.uint8, count * size, offset + 8).reshape(count, size)
            offset += 8 + count * size
            beats = job.beats[name] * timing.eighths // 8
            surplus += max(0, count - beats)
            outputs[name] = from_bytes(rows[:beats], stream).reshape(-1)
        runs.append(Run(timing.name, outputs, bool(is_done), violations, surplus))
    return runs


def _call(command: Sequence[str], cwd: Path, more: Mapping[str, str] | None = None) -> None:
    environment = os.environ | (more or {})
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment)
    if done.returncode:
        told = (done.stdout + done.stderr).strip()
        raise RuntimeError(f"{Path(command[0]).name} failed ({done.returncode}): {told[-3000:]}")
