"""Simulation of a decode engine with Verilator, against the integer model in PyTorch."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chop.errors import HardwareError
from chop.hw.decode.decode_emit import IMAGE, TOP, DecodeDesign
from chop.hw.decode.integer_llama import check_request, generate
from chop.hw.decode.memory_timing import BANDWIDTH_ONE, MemoryTiming
from chop.hw.sim.verilate import build_program

DRIVER = Path(__file__).with_name("decode_driver.cpp")
_SETTINGS = struct.Struct("<12I3Q")
_SLACK = 4
"""Factor of the longest time that a token can take, after which the driver stops waiting."""


@dataclass(frozen=True)
class DecodeRequest:
    """A prompt and the number of tokens to generate."""

    prompt: tuple[int, ...]
    new_tokens: int


@dataclass(frozen=True)
class SimulatedTokens:
    """Tokens of one request, the logits of each, and cycles: of inputs and of outputs."""

    tokens: list[int]
    logits: npt.NDArray[np.int16]
    accepted: list[int]
    sent: list[int]


@dataclass(frozen=True)
class DecodeRun:
    """Result of a simulation; the beats are those that memory read and wrote."""

    results: list[SimulatedTokens]
    cycles: int
    read_beats: int
    written_beats: int


def simulate_engine(
    design: DecodeDesign,
    directory: Path,
    requests: Sequence[DecodeRequest],
    timing: MemoryTiming | None = None,
    *,
    is_long: bool = False,
) -> DecodeRun:
    """Run the engine that `emit_engine` wrote to `directory`; one request after the other."""
    for request in requests:
        check_request(design.model, request.prompt, request.new_tokens)
    sources = sorted((directory / "rtl").resolve().glob("*.sv"))
    kind = "long" if is_long else "fast"
    program = build_program(TOP, sources, DRIVER, directory.resolve() / "sim", kind=kind)
    request_file = directory / "sim" / "request.bin"
    request_file.write_bytes(_request_bytes(design, requests, timing or MemoryTiming()))
    command = [str(program), "sim/request.bin", IMAGE, "sim/response.bin"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode:
        message = (done.stderr + done.stdout).strip()
        raise HardwareError(f"decode: the simulation stopped: {message[-1000:]}")
    return _read_response((directory / "sim" / "response.bin").read_bytes(), requests)


def _request_bytes(
    design: DecodeDesign, requests: Sequence[DecodeRequest], timing: MemoryTiming
) -> bytes:
    image, beat = design.image, design.options.data_width // 8
    size = sum(part.size for part in image.parts)
    memory = (
        timing.latency, timing.bandwidth, timing.refresh_interval, timing.refresh_cycles,
        timing.write_cycles, timing.write_latency, timing.bursts, timing.stalls, timing.seed,
    )  # fmt: skip
    cache = image.regions["0.keys"].address * beat
    patience = _SLACK * _longest_step(design, timing)
    head = _SETTINGS.pack(*memory, len(requests), 1, image.beats, size, cache, patience)
    bodies = [
        np.array([len(r.prompt), r.new_tokens, *r.prompt], dtype="<u4").tobytes() for r in requests
    ]
    return head + b"".join(bodies)


def _longest_step(design: DecodeDesign, timing: MemoryTiming) -> int:
    """Return an upper estimate of the cycles of a token."""
    per_beat = BANDWIDTH_ONE / timing.bandwidth + design.options.data_width / 16
    overhead = sum(i.tail + timing.latency + timing.write_latency for i in design.program)
    stalls = 1 - timing.stalls / 2**24
    return int((design.image.beats * per_beat + overhead) / stalls)


def _read_response(data: bytes, requests: Sequence[DecodeRequest]) -> DecodeRun:
    results, place = [], 0

    def take(count: int) -> list[int]:
        nonlocal place
        values = np.frombuffer(data, dtype="<u8", count=count, offset=place)
        place += 8 * count
        return [int(v) for v in values]

    for request in requests:
        accepted = take(len(request.prompt))
        tokens, sent, logits = [], [], []
        for _ in range(request.new_tokens):
            token, cycle, count = take(3)
            logits.append(np.frombuffer(data, dtype="<i2", count=count, offset=place))
            place += 2 * count
            tokens.append(token)
            sent.append(cycle)
        results.append(SimulatedTokens(tokens, np.stack(logits), accepted, sent))
    return DecodeRun(results, *take(3))


def compare_run(design: DecodeDesign, requests: Sequence[DecodeRequest], run: DecodeRun) -> int:
    """Return the number of logits compared; raise if a token or logit differs from PyTorch."""
    compared = 0
    for index, (request, result) in enumerate(zip(requests, run.results, strict=True)):
        expected = generate(design.model, request.prompt, request.new_tokens)
        differs = np.argwhere(expected.logits.numpy() != result.logits)
        if len(differs) or expected.tokens != result.tokens:
            where = f"token {differs[0][0]}, logit {differs[0][1]}" if len(differs) else "a token"
            raise HardwareError(
                f"decode: request {index} differs from PyTorch at {where}; "
                f"{len(differs)} of {result.logits.size} logits differ."
            )
        compared += result.logits.size
    return compared
