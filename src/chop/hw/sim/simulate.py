"""Native simulation of emitted RTL with Verilator.

Every output bit is compared with the golden integers, the cycle of every beat with the cycle model.
"""

from __future__ import annotations

import copy
import struct
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chop import toolchain
from chop.errors import HardwareError
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.arith.mxint_wire import Mxint
from chop.hw.design.control import Wire, signal_name
from chop.hw.design.design import Design, Interface
from chop.hw.design.stream import Stream, from_bytes, storage_bytes, to_bytes
from chop.hw.sim import parallel_runs as parts
from chop.hw.sim.parallel_runs import RunPart
from chop.hw.sim.sim_top import SimTop, sim_top
from chop.hw.sim.stage_clocks import clocked_top
from chop.hw.sim.verdict import UNPACED, Pace, compare, compare_pace
from chop.hw.sim.verdict import Verdict as Verdict
from chop.hw.sim.verilate import build, call
from chop.hw.sim.verilate import lint as lint
from chop.hw.sim.worst_case import EndCase
from chop.hw.timing import compiled
from chop.hw.timing.cycles import NO_STALLS, Stalls, Timing, patience, simulate_control
from chop.log import get_logger

logger = get_logger(__name__)

PREDICTED_CYCLES = 10_000
"""Least cycles of a simulation that the cycle model follows."""
COMPILED_CYCLES = 2_000_000
"""The same for the compiled model."""
_RESET_SPAN = 10_000
"""A reset comes within the time of four tensors (its predecessor must show), and these cycles."""
_EXTRA_CYCLES = 64
"""Cycles to look for beats that should not come after the last expected one."""
LONG_RUN = 8_000_000
"""Cycles from which on building a program for long runs is worth it."""


@dataclass(frozen=True)
class _Program:
    path: Path
    top: SimTop


class Simulator:
    """A verilated design, ready to run on any inputs."""

    def __init__(
        self,
        design: Design | Interface,
        directory: Path,
        *,
        waves: bool = False,
        long_runs: bool | None = None,
        is_quick: bool = False,
    ) -> None:
        """Build the RTL emitted in the hardware directory `directory`; `lint` it separately.

        `long_runs`: whether runs without stalls inside get their own program, built when first
        needed, in which stages sleep while nothing changes in them; None: those of LONG_RUN cycles
        or more do. `is_quick` builds fast and simulates slowly.
        """
        self.design = design if isinstance(design, Design) else None
        self.interface = design.interface() if isinstance(design, Design) else design
        self.directory = Path(directory).resolve()  # tools run in other directories
        self.waves = waves
        if waves:
            toolchain.require_waves()
        top = self.directory / "rtl" / f"{self.interface.name}.sv"
        if not top.exists():
            raise HardwareError(f"{top}: no such file. Emit the design first.")
        self.top = sim_top(top.read_text())
        self.program = build(
            self.interface, self.directory, self.top, waves=waves, is_quick=is_quick
        )
        self.long_runs = long_runs
        self._long_program: _Program | None = None
        self._predictions: dict[tuple[int, Stalls], Timing] = {}

    def at(self, directory: Path) -> Simulator:
        """Return the same program, run on the memory files of another hardware directory."""
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
        jobs: int | None = None,
    ) -> Verdict:
        """Stream `inputs` (codes, one array of tensors per port) through; compare everything.

        Compared are the values, the handshakes, and for PREDICTED_CYCLES or more the cycle of every
        beat. `expected` is needed if only the interface of the design is known. `trace`: cycles of
        handshakes at the ports to record, and of all signals if the simulator was built with waves.
        Many tensors without stalls are spread over `jobs` processes, by default as many as are
        worth it; the verdict is that of one process.
        """
        if expected is None:
            assert self.design is not None, "an interface cannot tell the expected outputs"
            expected = self.design.golden(inputs)
        tensors, together = len(next(iter(inputs.values()))), self.interface.in_flight
        if tensors % together:
            raise HardwareError(
                f"inputs: {tensors} tensors, of which {together} go through the design together. "
                f"Allowed: multiples of {together}."
            )
        if jobs is not None and jobs < 1:
            raise HardwareError(f"jobs: {jobs}. Allowed: 1 or more processes, or None.")
        program = self._program_for(tensors, stalls, trace)
        verdict = None
        if not (stalls.is_drawn or trace or self.waves):
            cycles = tensors * self.interface.cycles
            jobs = parts.worthwhile_jobs(cycles) if jobs is None else jobs
            verdict = self._run_parts(program, inputs, expected, jobs)
        if verdict is None:
            verdict = self._run_whole(program, inputs, expected, stalls, trace)
        return replace(verdict, pace=self._pace(verdict.timing, tensors, stalls))

    def _program_for(self, tensors: int, stalls: Stalls, trace: int) -> _Program:
        """Return the program for long runs, if requested and nothing is held up inside."""
        is_long = tensors * self.interface.cycles >= LONG_RUN
        if (
            not (is_long if self.long_runs is None else self.long_runs)
            or stalls.inside < 1
            or trace
            or self.waves
        ):
            return self._ordinary
        if self._long_program is None:
            text = (self.directory / "rtl" / f"{self.interface.name}.sv").read_text()
            top = clocked_top(text)
            try:
                path = build(self.interface, self.directory, top)
                self._long_program = _Program(path, top)
            except HardwareError as error:  # the other one does the same, and slower
                logger.warning("no program for long runs: %s", error)
                self._long_program = self._ordinary
        return self._long_program

    @property
    def _ordinary(self) -> _Program:
        return _Program(self.program, self.top)

    def _run_whole(
        self,
        program: _Program,
        inputs: Mapping[str, Ints],
        expected: Mapping[str, Ints],
        stalls: Stalls,
        trace: int,
    ) -> Verdict:
        started = time.perf_counter()
        response = self._drive(program, inputs, expected, stalls, trace)
        seconds = time.perf_counter() - started
        return replace(self._verdict(program, response, expected), seconds=seconds)

    def _run_parts(
        self,
        program: _Program,
        inputs: Mapping[str, Ints],
        expected: Mapping[str, Ints],
        jobs: int,
    ) -> Verdict | None:
        """Return None for a single part, or if the whole must show what is wrong."""
        tensors = len(next(iter(inputs.values())))
        ranges = parts.split(tensors, self.interface.in_flight, jobs)
        if len(ranges) < 2:
            return None

        def run(part: RunPart) -> Verdict:
            some = [
                {name: codes[part.start : part.stop] for name, codes in each.items()}
                for each in (inputs, expected)
            ]
            return self._run_whole(program, some[0], some[1], NO_STALLS, 0)

        started = time.perf_counter()
        with ThreadPoolExecutor(len(ranges)) as pool:
            try:
                verdicts = list(pool.map(run, ranges))
            except HardwareError:
                return None
        seconds = time.perf_counter() - started
        into, out = self._streams(program.top)
        verdict = parts.joined(ranges, verdicts, into | out)
        if verdict is None:
            logger.info("simulate: the parts of the run do not join, it runs in one process")
            return None
        return replace(verdict, seconds=seconds)

    def run_tables(self) -> Verdict | None:
        """Read every entry of every table, in each lane, against its file; None without tables."""
        probes = self.top.probes
        if not probes:
            return None
        inputs = {probe.ports[0]: probe.codes() for probe in probes}
        expected = {probe.ports[1]: probe.entries(self.directory) for probe in probes}
        response = self._drive(self._ordinary, inputs, expected, NO_STALLS, 0)
        return self._verdict(self._ordinary, response, expected)

    def run_ends(self, cases: Sequence[EndCase]) -> Verdict | None:
        """Drive each component alone, at full rate; None if no component can be driven.

        A stage is left out if one of its streams has neither a gate nor a port.
        """
        run = _TappedRun()
        for case in cases:
            into = [(self._end(signal, "in"), *rest) for signal, *rest in case.inputs]
            out = [(self._end(signal, "out"), *rest) for signal, *rest in case.outputs]
            if all(port for port, *_ in (*into, *out)):
                run.add(into, out)
        if not run.inputs:
            return None
        response = self._drive(self._ordinary, run.inputs, run.expected, NO_STALLS, 0, run.streams)
        return self._verdict(self._ordinary, response, run.expected, run.streams)

    def _end(self, signal: str, side: str) -> str | None:
        """Return the port that reaches one end of the stream `signal` while streams are cut."""
        if signal in self.top.gates:
            return f"{signal}_tap_{side}"
        if side == "out":
            return self.top.outputs.get(signal)
        return signal if signal in self.interface.inputs else None

    def _taps(self, side: str, streams: Mapping[str, Stream]) -> dict[str, Stream]:
        """Return the streams of all taps; those that carry nothing are bits."""
        bits = {
            f"{gate}_tap_{side}": Stream((width,), width, Fixed(1))
            for gate, width in self.top.widths.items()
        }
        return {name: streams.get(name, unused) for name, unused in bits.items()}

    def _pace(self, timing: Timing, tensors: int, stalls: Stalls) -> Pace:
        """Compare the cycles of the beats with the model, if there is a model."""
        model = self.design or self.interface
        if not tensors or (self.design is None and self.interface.control is None):
            return UNPACED
        key = (tensors, replace(stalls, resets=0))  # a reset is a fresh start
        if key not in self._predictions:
            bound = 3 * self.interface.cycles
            limit = max(PREDICTED_CYCLES, min(bound, 10 * PREDICTED_CYCLES))
            limit = limit if compiled.library() is None else max(limit, COMPILED_CYCLES)
            self._predictions[key] = simulate_control(
                model, tensors, stalls, gated=self._gated(), limit=limit
            )
        return compare_pace(timing, self._predictions[key])

    def _gated(self) -> list[Wire]:
        control = self.interface.control
        if control is None:
            stages = self.design.stages if self.design else ()
            counts = {stage.name: len(stage.component.outputs) for stage in stages}
        else:
            counts = {stage.name: stage.outputs for stage in control.stages}
        wires = [Wire(name, port) for name, count in counts.items() for port in range(count)]
        by_signal = {signal_name(wire, counts[wire.stage]): wire for wire in wires}
        return [by_signal[name] for name in self.top.gates]

    def _streams(
        self, top: SimTop, taps: Mapping[str, Stream] | None = None
    ) -> tuple[dict[str, Stream], dict[str, Stream]]:
        """Return the input and the output streams of a program."""
        into, out = (
            {**ports, **{p.ports[k]: p.streams[k] for p in top.probes}}
            for k, ports in enumerate((self.interface.inputs, self.interface.outputs))
        )
        if taps is not None:
            into, out = into | self._taps("in", taps), out | self._taps("out", taps)
        return into, out

    def _drive(
        self,
        program: _Program,
        inputs: Mapping[str, Ints],
        expected: Mapping[str, Ints],
        stalls: Stalls,
        trace: int,
        taps: Mapping[str, Stream] | None = None,
    ) -> bytes:
        """Return the program's answer; a port without codes gets none and gives none.

        `taps`: streams of the taps, if the streams inside are cut.
        """
        sides = zip((inputs, expected), self._streams(program.top, taps), strict=True)
        passes, gates = self.interface.passes, len(self.top.gates)
        lull = 4 if passes > 1 else 1  # ports are idle while a tensor goes round
        # one tensor alone is in each stage in turn, as often as it passes the shared block
        wait = patience((lull + gates) * self.interface.cycles, stalls, passes * (1 + gates))
        head = (stalls.seed, *stalls.thresholds(), stalls.burst, stalls.resets)
        extra = max(_EXTRA_CYCLES, patience(lull * self.interface.cycles, stalls) // 4)
        span = min(_EXTRA_CYCLES + 4 * self.interface.cycles, _RESET_SPAN)
        cut = (int(taps is not None), 0)
        request_parts = [struct.pack("<8I4Q", *head, *cut, wait, extra, trace, span)]
        for codes, streams in sides:
            for name, stream in streams.items():
                beats = to_bytes(codes[name], stream) if name in codes else b""
                request_parts += [struct.pack("<Q", len(beats)), bytes(beats)]
        with tempfile.TemporaryDirectory() as scratch:
            request, response = Path(scratch, "request"), Path(scratch, "response")
            request.write_bytes(b"".join(request_parts))
            command = [str(program.path), str(request), str(response)]
            command += [str(self.directory / "sim" / "waves.fst")] if self.waves else []
            call(command, cwd=self.directory)
            return response.read_bytes()

    def _verdict(
        self,
        program: _Program,
        response: bytes,
        expected: Mapping[str, Ints],
        taps: Mapping[str, Stream] | None = None,
    ) -> Verdict:
        is_done, cycles, violations, spoilt, traced = struct.unpack_from("<5Q", response)
        reader = _ResponseReader(response, 40)
        into, out = self._streams(program.top, taps)
        handshakes = reader.array(np.uint8, traced).reshape(-1, len(into) + len(out))
        times_in = {name: reader.array(np.uint32, reader.count()) for name in into}
        times_out, outputs = {}, {}
        for name, stream in out.items():
            beats = reader.count()
            size = storage_bytes(stream.beat_width)
            rows = reader.array(np.uint8, beats * size).reshape(beats, size)
            outputs[name] = from_bytes(rows, stream).reshape(-1)
            needed = expected[name].size // stream.lanes if name in expected else 0
            times_out[name] = reader.array(np.uint32, beats)[:needed]
        if not is_done:
            counts = {n: f"{outputs[n].size} of {v.size}" for n, v in expected.items()}
            endless = any(outputs[n].size > v.size for n, v in expected.items())
            what = "beats come without end" if endless else "no beat moved any more"
            raise HardwareError(f"simulation: {what} after cycle {cycles}; values out: {counts}.")
        compared, wrong, first, surplus, values = compare(expected, outputs, out)
        timing = Timing(times_in, {name: times_out[name] for name in expected})
        tensors = len(next(iter(expected.values())))
        own = {*self.interface.inputs, *self.interface.outputs}
        shown = handshakes[:, [k for k, name in enumerate((*into, *out)) if name in own]]
        facts = (
            tensors,
            compared,
            wrong,
            first,
            violations,
            surplus,
            timing,
            values,
            shown,
            spoilt,
        )
        return Verdict(*facts, simulated_cycles=cycles)


@dataclass
class _TappedRun:
    """The codes of a run with cut streams, by port, and the streams of the ports."""

    inputs: dict[str, Ints] = field(default_factory=dict)
    expected: dict[str, Ints] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)

    def add(self, into: Sequence[Any], out: Sequence[Any]) -> None:
        """Add the ports, streams and codes of a stage."""
        for side, listed in ((self.inputs, into), (self.expected, out)):
            side |= {port: codes for port, _, codes in listed}
            self.streams |= {port: stream for port, stream, _ in listed}


class _ResponseReader:
    """Reader of arrays from the front of a byte string."""

    def __init__(self, data: bytes, offset: int) -> None:
        self.data, self.offset = data, offset

    def count(self) -> int:
        return int(self.array(np.uint64, 1)[0])

    def array(self, dtype: Any, count: int) -> npt.NDArray[Any]:
        array = np.frombuffer(self.data, dtype, count, self.offset)
        self.offset += array.nbytes
        return array


def random_inputs(design: Design, tensors: int, seed: int = 0) -> dict[str, Ints]:
    """Return codes over the whole range of each input, with its extremes; weights unchanged.

    Inputs whose readers treat small numbers differently get rows of every scale.
    """
    rng = np.random.default_rng(seed)
    small = {w.stage for s in design.stages if s.component.has_scales for w in s.sources}
    inputs = design.weights(tensors)
    for name, stream in design.inputs.items():
        if name in inputs:
            continue
        number = stream.format
        if isinstance(number, Mxint):
            inputs[name] = number.draw(rng, (tensors, *stream.shape))
            continue
        codes = rng.integers(number.low, number.high, (tensors, *stream.shape), endpoint=True)
        extreme = rng.random(codes.shape) < 0.05
        ends = rng.choice([number.low, number.high, 0], codes.shape)
        if name in small:
            rows = (*codes.shape[:-1], 1)
            codes >>= rng.integers(0, number.width, rows) * rng.integers(0, 1, rows, endpoint=True)
        inputs[name] = np.where(extreme, ends, codes).astype(np.int64)
    return inputs
