"""Cycle model of a decode engine: the cycle of every token, without the data.

Each class repeats the control registers of one module of `rtl`. `predict_cycles` must agree with
the simulation in every cycle, with and without stalls of the memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from chop.hw.decode.decode_emit import DecodeDesign
from chop.hw.decode.decode_program import ROOT_WAIT, DecodeInstruction, DecodeOp, To
from chop.hw.decode.decode_sim import DecodeRequest
from chop.hw.decode.memory_timing import MemoryModel, MemoryTiming

ELEMENT_DELAY = 14
"""Cycles of `block_dot.sv` from the last beat of a row to its element."""
AHEAD = 2
"""Registers of `burst_reader.sv` behind its queue."""
ROTATOR_DELAY = 7
COLLECTOR_DELAY = 4
CODE_WIDTH = 16


@dataclass
class PredictedTokens:
    """Cycles in which the tokens of a request are accepted and sent."""

    accepted: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class PredictedRun:
    """Prediction of a simulation."""

    results: list[PredictedTokens]
    cycles: int
    read_beats: int
    written_beats: int
    phases: dict[str, int]
    """Cycles by what the engine does: name of a matrix or vector, without its layer."""


class _Reader:
    """Registers of `burst_reader.sv`."""

    def __init__(self, design: DecodeDesign) -> None:
        self.options = design.options
        self.address = self.left = self.length = self.flight = 0
        self.queued = self.count = 0  # beats in the queue, and in the registers behind it
        self.is_sized = self.fits = False
        self.room = design.options.queue
        self.burst = 0  # beats of the address that is offered; 0: none

    def step(self, memory: MemoryModel, offered: tuple[int, int] | None, pop: bool) -> int:
        """Advance one cycle; return the beats of the burst that memory takes."""
        options = self.options
        accepted = self.burst if memory.takes else 0
        is_free = self.flight < options.outstanding and (not self.burst or bool(accepted))
        issue, length = self.fits and is_free, self.length
        self.fits = self.is_sized and self.room >= length and not issue
        self.is_sized = self.left > 0 and not issue
        self.length = min(self.left, options.burst - self.address % options.burst)
        ends = memory.gives and memory.waiting[0][1] == 1
        if offered is not None and not self.left:
            self.address, self.left = offered
        elif issue:
            self.address += length
            self.left -= length
        self.room += pop - (length if issue else 0)
        self.flight += issue - ends
        moves = self.queued > 0 and self.count < AHEAD
        self.queued += memory.gives - moves
        self.count += moves - pop
        self.burst = length if issue else 0 if accepted else self.burst
        return accepted


class _Writer:
    """Registers of `cache_writer.sv`, and the times at which words reach it."""

    def __init__(self) -> None:
        self.due: deque[int] = deque()
        self.count = self.open = 0
        self.address_sent = self.data_sent = False

    def step(self, memory: MemoryModel, cycle: int) -> bool:
        """Advance one cycle; return whether memory takes a word."""
        arrives = bool(self.due) and self.due[0] == cycle
        has_word = self.count > 0
        address_done = has_word and (self.address_sent or memory.takes_address)
        data_done = has_word and (self.data_sent or memory.takes_data)
        wrote = address_done and data_done
        self.address_sent, self.data_sent = address_done and not wrote, data_done and not wrote
        self.count += arrives - wrote
        self.open += arrives - memory.answered
        if arrives:
            self.due.popleft()
        return wrote


class _Collector:
    """Times at which the rows of a matrix become words of the cache."""

    def __init__(self, design: DecodeDesign, writer: _Writer) -> None:
        self.writer, self.block = writer, design.model.options.block
        self.lanes = design.options.data_width // design.model.options.cache_width
        self.head_dim = design.model.shape.head_dim
        self.start()

    def start(self) -> None:
        """Begin an instruction."""
        self.rows = self.results = 0

    def row(self, cycle: int, rotate: bool) -> None:
        """Note the last beat of a row."""
        self.rows += 1
        if not rotate:
            self._result(cycle + ELEMENT_DELAY)
        elif self.rows % 2 == 0:
            self._result(cycle + ELEMENT_DELAY + ROTATOR_DELAY)
            self._result(cycle + ELEMENT_DELAY + ROTATOR_DELAY + 1)

    def _result(self, cycle: int) -> None:
        self.results += 1
        if self.results % self.block:
            return
        first = cycle + COLLECTOR_DELAY
        self.writer.due.extend(
            first + lane - 1 for lane in range(self.lanes, self.block + 1, self.lanes)
        )
        if self.results % self.head_dim == 0:
            self.writer.due.append(first + self.block)


class _Walker:
    """Registers of the program counter that feeds the reader."""

    waits: ClassVar = {"fetch": "load", "load": "offer"}

    def __init__(self, engine: _Engine) -> None:
        self.engine = engine
        self.state, self.pc, self.caches = "idle", 0, 0

    def offer(self) -> tuple[int, int] | None:
        """Return address and beats of the range that is offered."""
        if self.state != "offer" or self.engine.is_over(self.pc):
            return None
        engine, now = self.engine, self.engine.program[self.pc]
        if now.fence and (engine.writer.open or self.caches != engine.caches):
            return None
        address = now.address
        if now.op == DecodeOp.EMBED:
            address += engine.token * now.beats
        elif now.op == DecodeOp.ROTATION:
            address += engine.position * now.beats
        return address, engine.beats_of(now)

    def step(self, accepted: bool, starts: bool) -> None:
        """Advance one cycle."""
        if self.state in self.waits:
            self.state = self.waits[self.state]
        elif self.state == "offer":
            if self.engine.is_over(self.pc):
                self.state = "idle"
            elif accepted:
                now = self.engine.program[self.pc]
                self.caches += now.op == DecodeOp.MATRIX and now.to == To.CACHE
                self.state = "fetch"
                self.pc += 1
        if starts:
            self.state, self.pc = "fetch", 0


class _Engine:
    """Registers of the sequencer of `decode_engine.sv`."""

    def __init__(self, design: DecodeDesign, memory: MemoryModel) -> None:
        self.design, self.memory, self.program = design, memory, design.program
        self.reader, self.writer = _Reader(design), _Writer()
        self.collector = _Collector(design, self.writer)
        self.walker = _Walker(self)
        self.state, self.pc, self.tail, self.code, self.left = "idle", 0, 0, 0, 0
        self.token = self.position = self.caches = 0
        self.needs_logits = self.is_generating = False
        width = design.options.data_width
        self.codes = {
            DecodeOp.EMBED: width // design.model.embedding_width,
            DecodeOp.NORM: width // CODE_WIDTH,
        }
        lanes = design.options.data_width // design.model.options.weight_width
        self.block_beats = design.model.options.block // lanes
        self.phases: Counter[str] = Counter()
        self.names = [i.name.rpartition(".")[2] for i in design.program] + ["tokens"]

    def is_over(self, pc: int) -> bool:
        """Return whether the step ends before instruction `pc`."""
        return pc == len(self.program) or (self.program[pc].head and not self.needs_logits)

    def beats_of(self, now: DecodeInstruction) -> int:
        """Return the beats that an instruction reads at this position."""
        if now.op in (DecodeOp.SCORES, DecodeOp.VALUES):
            return (self.position + 1) * self.design.row_beats
        return now.beats

    def cycle(self, cycle: int, token: int | None, is_last: bool) -> tuple[bool, bool]:
        """Advance one cycle; return whether a token is accepted and whether one may be sent."""
        may_send = self.memory.begin(cycle)
        takes = token is not None and self.state == "idle" and not self.is_generating
        sends = self.state == "send" and may_send
        offered = self.walker.offer()
        is_accepted = offered is not None and not self.reader.left
        self.phases["tokens" if self.state in ("idle", "send") else self.names[self.pc]] += 1
        pop = self._pops()
        if pop:
            self._beat(cycle)
        burst = self.reader.step(self.memory, offered, pop)
        wrote = self.writer.step(self.memory, cycle)
        self.memory.end(cycle, burst, wrote)
        self._advance(pop)
        self.walker.step(is_accepted, starts=False)
        if takes:
            assert token is not None
            self.start(token, is_last)
        return takes, sends

    def start(self, token: int, needs_logits: bool) -> None:
        """Begin a step in the next cycle."""
        self.token, self.needs_logits, self.is_generating = token, needs_logits, needs_logits
        self.state, self.pc = "fetch", 0
        self.walker.step(accepted=False, starts=True)

    def _pops(self) -> bool:
        """Return whether a beat leaves the queue."""
        if self.state != "run" or not self.reader.count:
            return False
        codes = self.codes.get(self.program[self.pc].op)
        if codes is not None:
            self.code = (self.code + 1) % codes
            return self.code == 0
        return True

    def _beat(self, cycle: int) -> None:
        """Follow the rows of a matrix that goes to the cache."""
        now = self.program[self.pc]
        if now.op != DecodeOp.MATRIX or now.to != To.CACHE:
            return
        beats = now.beats - self.left + 1
        if now.group:
            headers, place = divmod(beats - 1, now.group * self.block_beats + 1)
            if place == 0:
                return
            beats -= headers + 1
        if beats % (now.row_blocks * self.block_beats) == 0:
            self.collector.row(cycle, now.rotate)

    def _advance(self, pop: bool) -> None:
        """Advance the state of the sequencer."""
        state = self.state
        if state in ("fetch", "load"):
            self.state = "load" if state == "fetch" else "begin"
        elif state == "begin":
            self._begin()
        elif state == "root":
            self.tail += 1
            if self.tail == ROOT_WAIT:
                self.state, self.tail = "run", 0
        elif state == "run" and pop:
            self.left -= 1
            if not self.left:
                self.state = "tail"
        elif state == "tail":
            self._finish()

    def _begin(self) -> None:
        if self.is_over(self.pc):
            self.state = "send" if self.needs_logits else "idle"
            self.position += 1
            return
        now = self.program[self.pc]
        self.state = "root" if now.op == DecodeOp.NORM else "run"
        self.tail = self.code = 0
        self.left = self.beats_of(now)
        self.collector.start()

    def _finish(self) -> None:
        now = self.program[self.pc]
        if self.tail == now.tail:
            self.caches += now.op == DecodeOp.MATRIX and now.to == To.CACHE
            self.state = "fetch"
            self.pc += 1
        self.tail += 1


def predict_cycles(
    design: DecodeDesign,
    requests: Sequence[DecodeRequest],
    tokens: Sequence[Sequence[int]],
    timing: MemoryTiming | None = None,
) -> PredictedRun:
    """Return the cycles of requests; `tokens` are those that the model generates for each.

    Tokens decide which row of the embedding is read, and with it the bounds of bursts.
    """
    memory = MemoryModel(timing or MemoryTiming())
    engine, cycle, results = _Engine(design, memory), 0, []
    for request, outputs in zip(requests, tokens, strict=True):
        result = PredictedTokens()
        while len(result.accepted) < len(request.prompt):
            index = len(result.accepted)
            is_last = index + 1 == len(request.prompt)
            if engine.cycle(cycle, request.prompt[index], is_last)[0]:
                result.accepted.append(cycle)
            cycle += 1
        while len(result.sent) < request.new_tokens:
            if engine.cycle(cycle, None, False)[1]:
                result.sent.append(cycle)
                _send(engine, outputs, len(result.sent))
            cycle += 1
        results.append(result)
    return PredictedRun(
        results, cycle, memory.read_beats, memory.written_beats, dict(engine.phases)
    )


def _send(engine: _Engine, outputs: Sequence[int], count: int) -> None:
    """Begin the next step after a token was sent, or end the sequence."""
    if count < len(outputs):
        engine.start(outputs[count - 1], needs_logits=True)
    else:
        engine.state, engine.position, engine.is_generating = "idle", 0, False
