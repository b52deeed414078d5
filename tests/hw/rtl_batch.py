"""Many small designs in one simulator: Verilator makes each, one program holds them all.

Compiling the headers costs as much as ten small designs, and a process start is not free either, so
a batch is built and run at once. A machine needs Verilator and g++, nothing else.
"""

import hashlib
import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chop.files import cache_dir
from chop.hw import toolchain
from chop.hw.design import Design
from chop.hw.emit import emit
from chop.hw.stream import from_bytes, storage_bytes, to_bytes

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
class Run:
    """What came out of a design by port, and whether everything came and the handshakes held."""

    outputs: dict[str, np.ndarray]
    is_done: bool
    violations: int
    surplus: int


def run_batch(jobs: Sequence[Job], folder: Path, threads: int = 1) -> list[list[Run]]:
    """For each job: the run under stalls (after a reset in the middle of another), and the one at
    full rate.
    """
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
    rng = np.random.default_rng(job.seed)
    pace = job.design.cycles()
    valid, ready = (int(v) for v in rng.choice([90, 150, 220, 256], 2))
    middle = int(rng.integers(1, 3 * pace + 10))
    parts = [struct.pack("<5Q", 2 * job.seed + 1, valid, ready, 8 * pace + 200, middle)]
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
    objects = [str(p) for p in _runtime(include)]
    program = folder / "batch"
    compiler = str(toolchain.program("g++"))
    _call([compiler, *flags, str(unit), *objects, "-o", str(program)], folder)
    return program


def _belongs(name: str, number: int) -> bool:
    rest = name.removeprefix(f"Vd{number}")
    return not rest[0].isdigit()  # Vd1.cpp, Vd1__Syms.cpp, and not Vd12.cpp


def _runtime(include: Path) -> list[Path]:
    """Verilator's run time, compiled once per machine, in the user's cache."""
    key = hashlib.sha256(f"{toolchain.verilator().version()} {FLAGS}".encode()).hexdigest()[:16]
    cache = cache_dir() / f"batch-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    found = []
    for name in RUNTIME:
        path = cache / f"{name}.o"
        if not path.exists():
            draft = cache / f"{os.getpid()}.{name}.o"
            places = ["-I", str(include), "-I", str(include / "vltstd")]
            source = ["-c", str(include / f"{name}.cpp"), "-o", str(draft)]
            _call([str(toolchain.program("g++")), *FLAGS, *places, *source], cache)
            draft.replace(path)
        found.append(path)
    return found


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
    for _ in range(2):
        is_done, violations, _ = struct.unpack_from("<3Q", told, offset)
        offset += 24
        outputs, surplus = {}, 0
        for name, stream in job.design.output_streams().items():
            (count,) = struct.unpack_from("<Q", told, offset)
            size = storage_bytes(stream.beat_width)
            rows = np.frombuffer(told, np.uint8, count * size, offset + 8).reshape(count, size)
            offset += 8 + count * size
            surplus += max(0, count - job.beats[name])
            outputs[name] = from_bytes(rows[: job.beats[name]], stream).reshape(-1)
        runs.append(Run(outputs, bool(is_done), violations, surplus))
    return runs


def _call(command: Sequence[str], cwd: Path, more: Mapping[str, str] | None = None) -> None:
    environment = os.environ | (more or {})
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment)
    if done.returncode:
        told = (done.stdout + done.stderr).strip()
        raise RuntimeError(f"{Path(command[0]).name} failed ({done.returncode}): {told[-3000:]}")
