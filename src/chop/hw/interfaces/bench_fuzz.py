"""Cocotb test bench that fuzzes the ports of an AXI wrapper with one clock, pin by pin.

Reads and writes at random addresses, with random strobes, address and data in any order; inputs
with random TLAST and TKEEP; pauses of every channel. The master keeps the rules of AXI. Checked are
every answer, every output, that an offer stays until taken, that nothing hangs, and after each
round that the counters of the control port are those of the pins. `MASE_FUZZ` has the number of
accesses and the seed; the counts are written to `sim/fuzz.json`.
"""

import json
import os
from collections import Counter, deque
from pathlib import Path
from random import Random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

HARDWARE = Path(__file__).resolve().parent.parent
DESIGN = json.loads((HARDWARE / "design.json").read_text())
ACCESSES, SEED = (int(word) for word in os.environ.get("MASE_FUZZ", "1000 0").split())
ROUND = 2_000
"""Accesses between two comparisons of the counters."""
PATIENCE = 500
"""Cycles in which an access must be answered, and in which a stream that may move must move."""
NAME, CONTROL, STATUS, ENTERED, LEFT, CYCLES, _, WRONG, REFUSED = range(0, 36, 4)
KNOWN = range(0, 36, 4)
OKAY, SLVERR = 0, 2
RUN, CLEAR = 1, 2


class FuzzedChannel:
    """One direction of a handshake, seen at each edge: what is offered stays until it is taken."""

    def __init__(
        self, dut: Any, prefix: str, payload: tuple[str, ...], valid: str, ready: str
    ) -> None:
        self.name, self._valid = prefix, getattr(dut, f"{prefix}{valid}")
        self._ready = getattr(dut, f"{prefix}{ready}")
        self._payload = [getattr(dut, f"{prefix}{name}") for name in payload]
        self._stalled: tuple[int, ...] | None = None
        self.waits = 0

    def sample(self) -> tuple[int, ...] | None:
        """Return what was taken at this edge; None if nothing was."""
        is_valid, is_ready = int(self._valid.value), int(self._ready.value)
        if not is_valid:
            assert self._stalled is None, f"{self.name}: an offer was taken back"
            self.waits = 0
            return None
        offered = tuple(int(signal.value) for signal in self._payload)
        assert self._stalled in (None, offered), f"{self.name}: an offer has changed"
        self._stalled = None if is_ready else offered
        self.waits = 0 if is_ready else self.waits + 1
        return offered if is_ready else None

    def offer(self, values: tuple[int, ...] | None) -> None:
        """Drive an offer, or none."""
        self._valid.value = int(values is not None)
        for signal, value in zip(self._payload, values or (), strict=False):
            signal.value = value

    def accept(self, is_ready: bool) -> None:
        """Drive ready."""
        self._ready.value = int(is_ready)


class FuzzedInput:
    """A stream into the design: words of the vectors in turn, with wrong TLAST and TKEEP."""

    def __init__(self, dut: Any, name: str, rng: Random) -> None:
        self.channel = FuzzedChannel(dut, f"s_axis_{name}_t", _STREAM, "valid", "ready")
        self.words, self.beats, self.rng = _words(name), _beats(DESIGN["inputs"][name]), rng
        self.size = len(getattr(dut, f"s_axis_{name}_tkeep"))
        self.sent, self.wrong_last, self.wrong_keep = 0, 0, 0
        self._next: tuple[int, ...] | None = None

    def step(self, may_begin: bool) -> bool:
        """Count what was taken, and choose what is offered next; return True for a transfer."""
        moved = self.channel.sample()
        if moved is not None:
            is_last = self.sent % self.beats == self.beats - 1
            self.wrong_last += moved[2] != is_last
            self.wrong_keep += moved[1] != (1 << self.size) - 1
            self.sent += 1
            self._next = None
        if self._next is None and self.rng.random() < 0.6 and (may_begin or self.sent % self.beats):
            word = self.words[self.sent % len(self.words)]
            is_last = self.sent % self.beats == self.beats - 1
            keep = (1 << self.size) - 1
            if self.rng.random() < 0.05:
                keep = self.rng.randrange(keep)
            self._next = (word, keep, int(is_last ^ (self.rng.random() < 0.1)))
        self.channel.offer(self._next)
        return moved is not None


class FuzzedOutput:
    """A stream out of the design; every transfer must be that of the vectors."""

    def __init__(self, dut: Any, name: str, rng: Random) -> None:
        self.channel = FuzzedChannel(dut, f"m_axis_{name}_t", _STREAM, "valid", "ready")
        self.words, self.beats, self.rng = _words(name), _beats(DESIGN["outputs"][name]), rng
        self.size, self.got = len(getattr(dut, f"m_axis_{name}_tkeep")), 0

    def step(self) -> bool:
        """Check what was taken; return True for a transfer."""
        moved = self.channel.sample()
        if moved is not None:
            is_last = self.got % self.beats == self.beats - 1
            expected = (self.words[self.got % len(self.words)], (1 << self.size) - 1, int(is_last))
            assert moved == expected, f"{self.channel.name}: transfer {self.got} is {moved}"
            self.got += 1
        self.channel.accept(self.rng.random() < 0.5)
        return moved is not None


class FuzzedControl:
    """The AXI4-Lite port: accesses at random, and what they must be answered with."""

    def __init__(self, dut: Any, rng: Random) -> None:
        self.rng = rng
        parts = (("aw", ("addr",)), ("w", ("data", "strb")), ("b", ("resp",)), ("ar", ("addr",)),
                 ("r", ("data", "resp")))  # fmt: skip
        self.channels = {
            name: FuzzedChannel(dut, f"s_axil_{name}", payload, "valid", "ready")
            for name, payload in parts
        }
        self.offered: dict[str, tuple[int, ...] | None] = {"aw": None, "w": None, "ar": None}
        self.addresses: deque[int] = deque()
        self.values: deque[tuple[int, ...]] = deque()
        self.reads: deque[int] = deque()
        self.counts: Counter[str] = Counter()
        self.refused, self.runs, self.is_calm = 0, {1}, False
        self.answer = 0

    @property
    def is_idle(self) -> bool:
        """True if no access is open."""
        open_parts = (*self.addresses, *self.values, *self.reads)
        return not open_parts and all(each is None for each in self.offered.values())

    def step(self) -> None:
        """Check the answers of this edge, and choose the next offers."""
        moved = {name: channel.sample() for name, channel in self.channels.items()}
        for name, queue in (("aw", self.addresses), ("w", self.values), ("ar", self.reads)):
            each = moved[name]
            if each is not None:
                queue.append(each if name == "w" else each[0])  # type: ignore[arg-type]
                self.offered[name] = None
        if moved["b"] is not None:
            self._written(moved["b"][0])
        if moved["r"] is not None:
            self._was_read(*moved["r"])
        for name in self.offered:
            self._offer(name)
        for name in ("b", "r"):
            self.channels[name].accept(self.rng.random() < 0.6)
        waits = max(channel.waits for channel in self.channels.values())
        assert waits < PATIENCE, "an access hangs"

    def _offer(self, name: str) -> None:
        if self.offered[name] is None and self.rng.random() < 0.5:
            parts = {"aw": len(self.addresses), "w": len(self.values)}
            parts = {part: size + (self.offered[part] is not None) for part, size in parts.items()}
            ahead = {"aw": parts["aw"] - parts["w"], "w": parts["w"] - parts["aw"], "ar": 0}[name]
            # address and data of a write are at most one apart; what is open is completed
            if ahead < (0 if self.is_calm else 1):
                self.offered[name] = self._value() if name == "w" else (self._address(),)
        self.channels[name].offer(self.offered[name])

    def _address(self) -> int:
        is_known = self.rng.random() < 0.7
        return (
            self.rng.choice(KNOWN) + self.rng.randrange(4) if is_known else self.rng.randrange(256)
        )

    def _value(self) -> tuple[int, int]:
        """Return data that never clear the counters; mostly the design runs."""
        value = self.rng.getrandbits(32) & ~CLEAR
        return value | (self.rng.random() < 0.7), self.rng.choice((15, 15, self.rng.randrange(16)))

    def _written(self, answer: int) -> None:
        address, (value, strobes) = self.addresses.popleft(), self.values.popleft()
        is_control = address >> 2 == CONTROL >> 2
        assert answer == (OKAY if is_control else SLVERR), f"write at {address:#x}: {answer}"
        self.refused += not is_control
        self.counts["writes"] += 1
        self.counts["refused writes"] += not is_control
        if is_control and strobes & 1:
            self.runs = {value & RUN}

    def _was_read(self, value: int, answer: int) -> None:
        address = self.reads.popleft()
        is_known = address >> 2 < len(KNOWN)
        assert answer == (OKAY if is_known else SLVERR), f"read at {address:#x}: {answer}"
        if address >> 2 == NAME:
            assert value == int.from_bytes(b"MASE", "little")
        assert is_known or value == 0
        self.refused += not is_known
        self.counts["reads"] += 1
        self.counts["refused reads"] += not is_known
        self.answer = value


_STREAM = ("data", "keep", "last")


def _words(name: str) -> list[int]:
    return [int(line, 16) for line in (HARDWARE / "test" / f"{name}.mem").read_text().split()]


def _beats(port: dict[str, Any]) -> int:
    size = 1
    for each in port["shape"]:
        size *= each
    return size // int(port["parallelism"])


class FuzzedPorts:
    """All ports, stepped together at each edge of the clock."""

    def __init__(self, dut: Any, rng: Random) -> None:
        self.dut, self.control = dut, FuzzedControl(dut, rng)
        self.inputs = [FuzzedInput(dut, name, rng) for name in DESIGN["inputs"]]
        self.outputs = [FuzzedOutput(dut, name, rng) for name in DESIGN["outputs"]]
        self.cycles, self.still, self.transfers = 0, 0, 0

    async def step(self, may_begin: bool = True) -> None:
        """Pass one edge; streams that may move must."""
        await RisingEdge(self.dut.aclk)
        self.control.step()
        moved = [each.step(may_begin) for each in self.inputs]
        moved += [each.step() for each in self.outputs]
        self.transfers += sum(moved)
        self.cycles += 1
        is_stopped = 0 in self.control.runs and not self.control.is_calm
        self.still = 0 if any(moved) or is_stopped else self.still + 1
        assert self.still < PATIENCE or not may_begin, "no stream moves any more"

    async def reset(self) -> None:
        """Hold the reset with idle ports."""
        for channel in [*self.control.channels.values(), *(each.channel for each in self.inputs)]:
            if channel.name not in ("s_axil_b", "s_axil_r"):
                channel.offer(None)
        for channel in (self.control.channels["b"], self.control.channels["r"]):
            channel.accept(False)
        for each in self.outputs:
            each.channel.accept(False)
        self.dut.s_axil_awprot.value = self.dut.s_axil_arprot.value = 0
        self.dut.aresetn.value = 0
        for _ in range(4):
            await RisingEdge(self.dut.aclk)
        self.dut.aresetn.value = 1

    async def drain(self) -> None:
        """Finish open accesses, let the design run, and wait until every tensor has left."""
        self.control.is_calm = True
        while not self.control.is_idle:
            await self.step()
        await self.access("aw", CONTROL, RUN)
        most = max(-(-each.sent // each.beats) for each in self.inputs)
        self.still, limit = 0, self.cycles + 100_000
        while not self._is_empty(most):
            await self.step(any(each.sent < most * each.beats for each in self.inputs))
            most = max(-(-each.sent // each.beats) for each in self.inputs)
            assert self.cycles < limit, "tensors stay inside"
        self.still = 0

    def _is_empty(self, tensors: int) -> bool:
        sent = all(each.sent == tensors * each.beats for each in self.inputs)
        return sent and all(each.got == tensors * each.beats for each in self.outputs)

    async def access(self, kind: str, address: int, value: int = 0) -> int:
        """Do one access and return the word that was read."""
        self.control.offered[kind] = (address,)
        if kind == "aw":
            self.control.offered["w"] = (value, 15)
        await self.step(False)
        while not self.control.is_idle:
            await self.step(False)
        return self.control.answer


async def _check_round(fuzz: FuzzedPorts, before: dict[str, int]) -> dict[str, int]:
    """Compare the counters with the pins since `before`; clear them and return the pins' counts."""
    await fuzz.drain()
    now = _pins(fuzz)
    words = {name: await fuzz.access("ar", address) for name, address in _COUNTERS.items()}
    expected = {name: now[name] - before[name] for name in ("entered", "left", "refused")}
    wrong = [min(now[name] - before[name], 0xFFFF) for name in ("wrong last", "wrong keep")]
    assert words == {**expected, "wrong": wrong[0] | wrong[1] << 16}, f"{words} are not {expected}"
    status = await fuzz.access("ar", STATUS)
    assert status == 2 * (wrong[0] > 0) + 4 * (wrong[1] > 0), f"status {status:#x}"
    await fuzz.access("aw", CONTROL, RUN | CLEAR)
    fuzz.control.is_calm = False
    return _pins(fuzz)


_COUNTERS = {"entered": ENTERED, "left": LEFT, "wrong": WRONG, "refused": REFUSED}


def _pins(fuzz: FuzzedPorts) -> dict[str, int]:
    """Return the counts of the pins since the reset."""
    return {
        "entered": -(-fuzz.inputs[0].sent // fuzz.inputs[0].beats),
        "left": fuzz.outputs[0].got // fuzz.outputs[0].beats,
        "refused": fuzz.control.refused,
        "wrong last": sum(each.wrong_last for each in fuzz.inputs),
        "wrong keep": sum(each.wrong_keep for each in fuzz.inputs),
    }


@cocotb.test()
async def random_accesses_and_transfers(dut: Any) -> None:
    """Fuzz all ports for `ACCESSES` reads and writes; compare the counters after each round."""
    Clock(dut.aclk, 10, unit="ns").start()
    fuzz = FuzzedPorts(dut, Random(SEED))
    await fuzz.reset()
    counts, before, rounds = fuzz.control.counts, _pins(fuzz), 0
    while counts["reads"] + counts["writes"] < ACCESSES:
        goal = counts["reads"] + counts["writes"] + ROUND
        while counts["reads"] + counts["writes"] < min(goal, ACCESSES):
            await fuzz.step()
        before = await _check_round(fuzz, before)
        rounds += 1
    pins = {name: count for name, count in _pins(fuzz).items() if name != "refused"}
    record = {
        **counts,
        **pins,
        "transfers": fuzz.transfers,
        "cycles": fuzz.cycles,
        "rounds": rounds,
    }
    (HARDWARE / "sim").mkdir(exist_ok=True)
    (HARDWARE / "sim" / "fuzz.json").write_text(json.dumps(record, indent=1) + "\n")
