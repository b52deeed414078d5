"""Cocotb test bench of an AXI wrapper: needs cocotb, cocotbext-axi and the files beside it.

Masters and slaves of cocotbext-axi drive the ports. The vectors of `test/` go through as one frame
per tensor, at full rate and under random pauses on all ports; every byte that leaves is compared.
"""

import json
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, with_timeout
from cocotbext.axi import (
    AxiLiteBus,
    AxiLiteMaster,
    AxiResp,
    AxiStreamBus,
    AxiStreamFrame,
    AxiStreamSink,
    AxiStreamSource,
)

HARDWARE = Path(__file__).resolve().parent.parent
DESIGN = json.loads((HARDWARE / "design.json").read_text())
NAME, CONTROL, STATUS, ENTERED, LEFT, CYCLES, _, WRONG, REFUSED = range(0, 36, 4)
RUN, CLEAR = 1, 2
BUSY, LAST_ERROR, KEEP_ERROR = 1, 2, 4
ROUNDS = 12
"""Times that the inputs are sent where a queue between clocks takes results: more than it holds."""
PATIENCE_US = 100 + DESIGN["cycles"] * len(DESIGN["stages"])
"""Longest wait for a frame or an answer, hundreds of cycles."""


def _beats(port: dict[str, Any]) -> int:
    return int(prod(port["shape"]) // port["parallelism"])


def _frames(name: str, port: dict[str, Any], size: int, folder: str = "test") -> list[bytes]:
    """Return one frame of bytes for each tensor of a vector file."""
    words = [int(line, 16) for line in (HARDWARE / folder / f"{name}.mem").read_text().split()]
    data, count = [word.to_bytes(size, "little") for word in words], _beats(port)
    return [b"".join(data[k : k + count]) for k in range(0, len(data), count)]


class Ports:
    """Ports of the wrapper."""

    def __init__(self, dut: Any) -> None:
        self.dut, clock = dut, (dut.aclk, dut.aresetn)
        axis = (getattr(dut, "axis_aclk", dut.aclk), dut.aresetn)
        low = {"reset_active_level": False}
        self.control = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), *clock, **low)
        self.sources = {
            name: AxiStreamSource(AxiStreamBus.from_prefix(dut, f"s_axis_{name}"), *axis, **low)
            for name in DESIGN["inputs"]
        }
        self.sinks = {
            name: AxiStreamSink(AxiStreamBus.from_prefix(dut, f"m_axis_{name}"), *axis, **low)
            for name in DESIGN["outputs"]
        }

        for port in (self.control.write_if, self.control.read_if, *self.sources.values()):
            port.log.setLevel("WARNING")  # not a line for each transfer
        for sink in self.sinks.values():
            sink.log.setLevel("WARNING")

    async def reset(self) -> None:
        """Hold the reset for some cycles of each clock."""
        self.dut.aresetn.value = 0
        await ClockCycles(self.dut.aclk, 4)
        if hasattr(self.dut, "axis_aclk"):
            await ClockCycles(self.dut.axis_aclk, 6)
        await ClockCycles(self.dut.aclk, 4)
        self.dut.aresetn.value = 1
        await ClockCycles(self.dut.aclk, 2)

    def pause(self, rng: Random) -> None:
        """Pause every port at random."""
        for port in (*self.sources.values(), *self.sinks.values()):
            port.set_pause_generator(iter(lambda: rng.random() < 0.4, None))

    def inputs(self) -> dict[str, list[bytes]]:
        """Return the frames of each input."""
        return {n: _frames(n, DESIGN["inputs"][n], s.byte_lanes) for n, s in self.sources.items()}

    def outputs(self) -> dict[str, list[bytes]]:
        """Return the frames that each output must give."""
        return {n: _frames(n, DESIGN["outputs"][n], s.byte_lanes) for n, s in self.sinks.items()}

    async def send(self, frames: dict[str, list[bytes]]) -> None:
        """Queue the frames of all inputs."""
        for name, own in frames.items():
            for frame in own:
                await self.sources[name].send(AxiStreamFrame(frame))

    async def expect(self, frames: dict[str, list[bytes]]) -> None:
        """Compare all frames that leave."""
        for name, own in frames.items():
            for number, frame in enumerate(own):
                got = await with_timeout(self.sinks[name].recv(), PATIENCE_US, "us")
                assert bytes(got.tdata) == frame, f"{name}: tensor {number} has other bytes"

    async def read(self, address: int) -> int:
        """Read a word of the control port."""
        return int(await with_timeout(self.control.read_dword(address), PATIENCE_US, "us"))

    async def write(self, address: int, value: int) -> None:
        """Write a word of the control port."""
        await with_timeout(self.control.write_dword(address, value), PATIENCE_US, "us")


async def _started(dut: Any, axis_ps: int = 7_300) -> Ports:
    """Start the clocks, reset the design and return its ports; `axis_ps`: clock of the streams."""
    Clock(dut.aclk, 10, unit="ns").start()
    if hasattr(dut, "axis_aclk"):
        Clock(dut.axis_aclk, axis_ps, unit="ps", period_high=axis_ps // 2).start()
    ports = Ports(dut)
    await ports.reset()
    return ports


async def _stream_all(dut: Any, rng: Random | None, axis_ps: int = 7_300) -> None:
    ports = await _started(dut, axis_ps)
    if rng is not None:
        ports.pause(rng)
    await ports.send(ports.inputs())
    await ports.expect(ports.outputs())
    tensors = len(next(iter(ports.inputs().values())))
    assert [await ports.read(word) for word in (ENTERED, LEFT)] == [tensors, tensors]
    assert await ports.read(STATUS) == 0, "idle, without errors"
    assert await ports.read(CYCLES) >= tensors
    await ports.write(CONTROL, RUN | CLEAR)
    assert [await ports.read(word) for word in (ENTERED, LEFT, CYCLES)] == [0, 0, 0]


@cocotb.test()
async def full_rate(dut: Any) -> None:
    """Stream all tensors without a pause; check the counters of the control port."""
    await _stream_all(dut, None)


@cocotb.test()
async def random_pauses(dut: Any) -> None:
    """Stream all tensors under random pauses of every port."""
    await _stream_all(dut, Random(1))


@cocotb.test()
async def stopped_design_takes_nothing(dut: Any) -> None:
    """Check that no transfer is taken at run = 0, and that all go through at run = 1."""
    ports = await _started(dut)
    assert await ports.read(NAME) == int.from_bytes(b"MASE", "little")
    await ports.write(CONTROL, 0)
    await ports.send(ports.inputs())
    await ClockCycles(dut.aclk, 200)
    assert [await ports.read(word) for word in (CONTROL, ENTERED, STATUS)] == [0, 0, 0]
    await ports.write(CONTROL, RUN)
    await ports.expect(ports.outputs())


@cocotb.test()
async def design_is_busy_until_a_tensor_has_left(dut: Any) -> None:
    """Check busy and its cycles while no output is taken, so that tensors stay inside."""
    ports = await _started(dut)
    for sink in ports.sinks.values():
        sink.pause = True
    rounds = ROUNDS if hasattr(dut, "axis_aclk") else 1  # a queue between clocks holds some
    for _ in range(rounds):
        await ports.send(ports.inputs())
    await ClockCycles(dut.aclk, 200 * rounds)
    left = await ports.read(LEFT)
    assert await ports.read(ENTERED) > left
    assert left == 0 or rounds > 1
    assert await ports.read(STATUS) == BUSY
    assert await ports.read(CYCLES) > 100
    for sink in ports.sinks.values():
        sink.pause = False
    for _ in range(rounds):
        await ports.expect(ports.outputs())


@cocotb.test()
async def wrong_frames_are_reported(dut: Any) -> None:
    """Check that a wrong TLAST and bytes that are not kept set their bits until a clear."""
    ports = await _started(dut)
    frames = ports.inputs()
    name, source = next(iter(ports.sources.items()))
    if _beats(DESIGN["inputs"][name]) > 1:
        cut = source.byte_lanes
        frames[name] = [part for f in frames[name] for part in (f[:cut], f[cut:])]
        await ports.send(frames)
        await ports.expect(ports.outputs())  # the number of transfers counts
        assert await ports.read(STATUS) == LAST_ERROR
        assert await ports.read(WRONG) == len(ports.inputs()[name])
        await ports.write(CONTROL, RUN | CLEAR)
        assert [await ports.read(word) for word in (STATUS, WRONG)] == [0, 0]
    if source.byte_lanes > 1:
        await source.send(AxiStreamFrame(ports.inputs()[name][0][: source.byte_lanes - 1]))
        await ClockCycles(dut.aclk, 20)
        assert await ports.read(STATUS) & KEEP_ERROR
        assert await ports.read(WRONG) >> 16 == 1


@cocotb.test()
async def wrong_addresses_are_refused(dut: Any) -> None:
    """Check that unknown words, and writes to words that are only read, end with SLVERR."""
    ports = await _started(dut)
    assert (await ports.control.read(0x40, 4)).resp == AxiResp.SLVERR
    assert (await ports.control.write(STATUS, b"\xff\xff\xff\xff")).resp == AxiResp.SLVERR
    assert (await ports.control.read(STATUS, 4)).resp == AxiResp.OKAY
    assert await ports.read(REFUSED) == 2
    await ports.write(CONTROL, RUN | CLEAR)
    assert await ports.read(REFUSED) == 0
