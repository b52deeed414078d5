"""Runs emitted RTL natively with Verilator; compares every output bit with the golden integers."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chop.errors import HardwareError
from chop.hw import toolchain, trust
from chop.hw.cycles import NO_STALLS, Stalls, Timing, patience
from chop.hw.design import Design, Interface
from chop.hw.emit import write_files
from chop.hw.golden import Ints
from chop.hw.stream import from_bytes, storage_bytes, to_bytes
from chop.log import get_logger

logger = get_logger(__name__)

DRIVER = Path(__file__).parent / "driver.cpp"
_CXX_FLAGS = ("-std=gnu++17", "-O1", "-pthread", "-fno-strict-aliasing")
_RUNTIME = {
    False: ("verilated", "verilated_threads"),
    True: ("verilated", "verilated_threads", "verilated_fst_c"),
}
_PRELUDE = ("verilated.h", "cstdint", "cstdio", "cstring", "memory", "vector")
_TRACE = {False: (), True: ("--trace-fst",)}
_EXTRA_CYCLES = 64
"""How long to look for beats that should not come after the last expected one."""


@dataclass(frozen=True)
class Verdict:
    """What a simulation showed: outputs compared, and where they first differ."""

    tensors: int
    compared: int
    mismatches: int
    first_mismatch: str
    handshake_violations: int
    surplus_beats: int
    timing: Timing
    outputs: Mapping[str, Ints]
    handshakes: npt.NDArray[np.uint8]
    """Per traced cycle and port: bit 0 valid, bit 1 ready."""

    @property
    def is_exact(self) -> bool:
        """Every bit of at least one output compared and found equal, and the handshakes kept."""
        return self.compared > 0 and not (
            self.mismatches or self.handshake_violations or self.surplus_beats
        )

    @property
    def cycles(self) -> int:
        """Cycles until the last output beat."""
        return self.timing.cycles

    def require_exact(self) -> Verdict:
        """Itself; raises unless exact."""
        if not self.is_exact:
            raise HardwareError(f"simulation: {self}")
        return self

    def __str__(self) -> str:
        right = self.compared - self.mismatches
        text = f"{right} of {self.compared} output values bit-exact in {self.cycles} cycles"
        if self.first_mismatch:
            text += f"; first mismatch: {self.first_mismatch}"
        if self.handshake_violations or self.surplus_beats:
            text += (
                f"; {self.handshake_violations} handshake violations, "
                f"{self.surplus_beats} surplus beats"
            )
        return text


class Simulator:
    """A verilated design, ready to run on any inputs."""

    def __init__(self, design: Design | Interface, directory: Path, *, waves: bool = False) -> None:
        """Build the RTL emitted in the hardware directory `directory`; `lint` it on its own."""
        self.design = design if isinstance(design, Design) else None
        self.interface = design.interface() if isinstance(design, Design) else design
        self.directory = Path(directory).resolve()  # tools run in other directories
        self.waves = waves
        if waves:
            toolchain.require_waves()
        self.program = _build(self.interface, self.directory, waves)

    def at(self, directory: Path) -> Simulator:
        """The same program, run on the memory files of another hardware directory."""
        moved = copy.copy(self)
        moved.directory = Path(directory).resolve()
        return moved

    def run(
        self,
        inputs: Mapping[str, Ints],
        stalls: Stalls = NO_STALLS,
        *,
        expected: Mapping[str, Ints] | None = None,
        trace: int = 0,
    ) -> Verdict:
        """Stream `inputs` (codes, one array of tensors per port) through; compare everything.

        `expected` is needed where only the interface of the design is known. `trace` cycles of
        the handshakes at the ports, and of all signals where the simulator was built with waves,
        are kept.
        """
        if expected is None:
            assert self.design is not None, "an interface cannot tell the expected outputs"
            expected = self.design.golden(inputs)
        with tempfile.TemporaryDirectory() as scratch:
            request, response = Path(scratch, "request"), Path(scratch, "response")
            request.write_bytes(self._request(inputs, expected, stalls, trace))
            command = [str(self.program), str(request), str(response)]
            command += [str(self.directory / "sim" / "waves.fst")] if self.waves else []
            _call(command, cwd=self.directory)
            return self._verdict(response.read_bytes(), expected)

    def _request(
        self,
        inputs: Mapping[str, Ints],
        expected: Mapping[str, Ints],
        stalls: Stalls,
        trace: int,
    ) -> bytes:
        valid, ready = stalls.thresholds()
        wait = patience(self.interface.cycles, stalls)
        extra = max(_EXTRA_CYCLES, wait // 4)
        parts = [struct.pack("<4I3Q", stalls.seed, valid, ready, 0, wait, extra, trace)]
        for name, stream in self.interface.inputs.items():
            beats = to_bytes(inputs[name], stream)
            parts += [struct.pack("<Q", len(beats)), beats.tobytes()]
        for name, stream in self.interface.outputs.items():
            parts.append(struct.pack("<Q", expected[name].size // stream.lanes))
        return b"".join(parts)

    def _verdict(self, told: bytes, expected: Mapping[str, Ints]) -> Verdict:
        is_done, cycles, violations, traced = struct.unpack_from("<4Q", told)
        reader = _Reader(told, 32)
        ports = len(self.interface.inputs) + len(self.interface.outputs)
        handshakes = reader.array(np.uint8, traced).reshape(-1, ports)
        times_in = {name: reader.array(np.uint32, reader.count()) for name in self.interface.inputs}
        times_out, outputs = {}, {}
        for name, stream in self.interface.outputs.items():
            beats = reader.count()
            size = storage_bytes(stream.beat_width)
            rows = reader.array(np.uint8, beats * size).reshape(beats, size)
            outputs[name] = from_bytes(rows, stream).reshape(-1)
            times_out[name] = reader.array(np.uint32, beats)
        if not is_done:
            counts = {n: f"{v.size} of {expected[n].size}" for n, v in outputs.items()}
            raise HardwareError(
                f"simulation: no beat moved any more after cycle {cycles}; values out: {counts}."
            )
        return _compare(
            self.interface, expected, outputs, Timing(times_in, times_out), violations, handshakes
        )


def _compare(
    interface: Interface,
    expected: Mapping[str, Ints],
    outputs: Mapping[str, Ints],
    timing: Timing,
    violations: int,
    handshakes: npt.NDArray[np.uint8],
) -> Verdict:
    compared = mismatches = surplus = 0
    first = ""
    kept = {}
    for name, wanted in expected.items():
        flat = wanted.reshape(-1)
        found = outputs[name][: flat.size]
        surplus += (outputs[name].size - flat.size) // interface.outputs[name].lanes
        wrong = np.flatnonzero(found != flat)
        compared += flat.size
        mismatches += wrong.size
        kept[name] = found.reshape(wanted.shape)
        if wrong.size and not first:
            where = tuple(int(i) for i in np.unravel_index(wrong[0], wanted.shape))
            first = f"{name}{list(where)} is {found[wrong[0]]}, expected {flat[wrong[0]]}"
    exact_times = {
        n: t[: expected[n].size // interface.outputs[n].lanes] for n, t in timing.outputs.items()
    }
    tensors = len(next(iter(expected.values())))
    return Verdict(
        tensors,
        compared,
        mismatches,
        first,
        violations,
        surplus,
        Timing(timing.inputs, exact_times),
        kept,
        handshakes,
    )


class _Reader:
    """Takes arrays off the front of a byte string."""

    def __init__(self, data: bytes, offset: int) -> None:
        self.data, self.offset = data, offset

    def count(self) -> int:
        return int(self.array(np.uint64, 1)[0])

    def array(self, dtype: Any, count: int) -> npt.NDArray[Any]:
        found = np.frombuffer(self.data, dtype, count, self.offset)
        self.offset += found.nbytes
        return found


def random_inputs(design: Design, tensors: int, seed: int = 0) -> dict[str, Ints]:
    """Codes over the whole range of each input, the extremes among them."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, stream in design.inputs.items():
        number = stream.format
        codes = rng.integers(number.low, number.high, (tensors, *stream.shape), endpoint=True)
        extreme = rng.random(codes.shape) < 0.05
        ends = rng.choice([number.low, number.high, 0], codes.shape)
        found[name] = np.where(extreme, ends, codes).astype(np.int64)
    return found


def lint(directory: Path, top: str = "top") -> str:
    """Warnings and errors of `verilator --lint-only -Wall` on the emitted RTL; empty for none."""
    command = [str(toolchain.verilator().program), "--lint-only", "-Wall", "--top-module", top]
    command += [str(p) for p in sorted((directory.resolve() / "rtl").glob("*.sv"))]
    environment = os.environ | toolchain.verilator().environment()
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, env=environment)
    return toolchain.complaints(done)


def _build(interface: Interface, directory: Path, waves: bool) -> Path:
    """The simulator program of the RTL in `directory`; built again only when a source changed."""
    sources = sorted((directory / "rtl").glob("*.sv"))
    if not sources:
        raise HardwareError(f"{directory}: no RTL in rtl/. Emit the design first.")
    ports = _ports_text(interface)
    key = hashlib.sha256()
    for text in (ports, DRIVER.read_text(), toolchain.verilator().version(), str(waves)):
        key.update(text.encode())
    for source in sources:
        key.update(source.read_bytes())
    work = directory / "sim" / f"{'waves' if waves else 'fast'}-{key.hexdigest()[:16]}"
    program = work / "simulator"
    if not trust.is_built_here(program):
        shutil.rmtree(work, ignore_errors=True)  # a file that came with the folder is not compiled
        work.mkdir(parents=True)
        (work / "ports.h").write_text(ports)
        _verilate(interface.name, sources, work, _TRACE[waves])
        _compile(work, waves)
        trust.note_built(program)
    return program


def _ports_text(interface: Interface) -> str:
    def table(function: str, names: Sequence[str]) -> str:
        rows = "".join(
            f"    {{&top.{n}, sizeof(top.{n}), &top.{n}_valid, &top.{n}_ready}},\n" for n in names
        )
        return f"inline std::vector<Port> {function}(Top& top) {{\n  return {{\n{rows}  }};\n}}\n"

    return (
        '#include "Vtop.h"\nusing Top = Vtop;\n'
        + table("input_ports", list(interface.inputs))
        + table("output_ports", list(interface.outputs))
    )


def _verilate(top: str, sources: Sequence[Path], work: Path, options: Sequence[str]) -> None:
    tool = toolchain.verilator()
    command = [str(tool.program), "--cc", "-Wno-fatal", "--top-module", top, "--prefix", "Vtop"]
    command += ["-O3", "--x-assign", "fast", "--x-initial", "unique", "--Mdir", str(work)]
    command += [*options, *(str(s.resolve()) for s in sources)]
    _call(command, work, tool.environment())


def _compile(work: Path, waves: bool) -> None:
    """One translation unit for the whole design: small designs compile in a second or two."""
    unit = work / "unit.cpp"
    parts = [p.name for p in sorted(work.glob("Vtop*.cpp"))] + [str(DRIVER)]
    unit.write_text("".join(f'#include "{part}"\n' for part in parts))
    draft = work / f"simulator.{os.getpid()}"
    runtime = _runtime(waves)
    prelude = ["-include", str(runtime / "prelude.h")]
    objects = [str(runtime / f"{name}.o") for name in _RUNTIME[waves]]
    libraries = ["-lz", "-llz4"] if waves else []
    flags = [*_flags(waves), "-I", str(work), *prelude]
    _call([_compiler(), *flags, str(unit), *objects, *libraries, "-o", str(draft)], cwd=work)
    draft.replace(work / "simulator")


def _compiler() -> str:
    return str(toolchain.program("g++"))


def _flags(waves: bool) -> list[str]:
    include = toolchain.verilator().include
    places = ["-I", str(include), "-I", str(include / "vltstd")]
    switches = [f"-DVM_TRACE={int(waves)}", f"-DVM_TRACE_FST={int(waves)}"]
    return [*_CXX_FLAGS, *switches, "-DVM_COVERAGE=0", "-DVM_SC=0", *places]


def _runtime(waves: bool) -> Path:
    """Verilator's run time and headers, compiled once per machine, in the user's cache."""
    tool = toolchain.verilator()
    key = hashlib.sha256(f"{tool.version()} {_flags(waves)}".encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "mase", key[:16])
    cache.mkdir(parents=True, exist_ok=True)
    prelude = cache / "prelude.h"
    write_files(cache, {prelude.name: "".join(f"#include <{name}>\n" for name in _PRELUDE)})
    wanted = {f"{name}.o": ["-c", str(tool.include / f"{name}.cpp")] for name in _RUNTIME[waves]}
    wanted["prelude.h.gch"] = ["-x", "c++-header", str(prelude)]
    for name, source in wanted.items():
        if not (cache / name).exists():
            logger.info("compiling Verilator's run time: %s", name)
            draft = cache / f"{os.getpid()}.{name}"
            _call([_compiler(), *_flags(waves), *source, "-o", str(draft)], cache)
            draft.replace(cache / name)
    return cache


def _call(command: Sequence[str], cwd: Path, more: Mapping[str, str] | None = None) -> None:
    environment = os.environ | (more or {})
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment)
    if done.returncode:
        told = (done.stderr + done.stdout).strip()
        raise HardwareError(f"{Path(command[0]).name} failed ({done.returncode}): {told[-2000:]}")
