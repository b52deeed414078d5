"""The control of a component in one declaration: buffers, steps, a pipeline, output queues.

A component repeats its steps for ever. A step may take a beat directly from its inputs, read from
the buffer of an input and free it, and give beats to outputs. One step is done per cycle, when all
its operands are there and every output queue has room. Its beats enter the output queue, a skid
buffer of two beats by default, `latency` cycles later. This covers operands at different rates,
rows that are read several times, double buffers (a buffer of two tensors that is freed one tensor
at a time) and several outputs:

>>> skid_buffer = Process((take(),))
>>> matrix = Process(  # 4 beats in, read 3 times, freed in the last pass; one beat out per pass
...     (Phase(3, needs={0: 1}, rises=1), Phase(needs={0: 4}, gives=(0,)),
...      Phase(3, needs={0: 1}, rises=1), Phase(needs={0: 4}, gives=(0,)),
...      Phase(3, needs={0: 1}, frees={0: 1}), Phase(needs={0: 1}, frees={0: 1}, gives=(0,))),
...     slots=(4,), latency=3)
>>> [len(p.steps) for p in (skid_buffer, matrix)]
[1, 12]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Phase:
    """`count` equal steps.

    `takes`: inputs without a buffer of which each step takes a beat. `needs`: by input, the beats
    that its buffer must hold; `rises` more at each further step. `frees`: by input, the beats that
    leave its buffer. `gives`: outputs that get a beat.
    """

    count: int = 1
    takes: tuple[int, ...] = ()
    needs: Mapping[int, int] = field(default_factory=dict)
    rises: int = 0
    frees: Mapping[int, int] = field(default_factory=dict)
    gives: tuple[int, ...] = ()


def take(count: int = 1, inputs: tuple[int, ...] = (0,), gives: tuple[int, ...] = (0,)) -> Phase:
    """Return `count` steps that pass a beat of each of `inputs` to each of `gives`."""
    return Phase(count, takes=inputs, gives=gives)


class ProcessStep(NamedTuple):
    """One row of a schedule; `takes` and `gives` have a bit for each input and output."""

    takes: int
    gives: int
    needs: tuple[int, ...]
    frees: tuple[int, ...]


@dataclass(frozen=True)
class Process:
    """The steps of `phases`, repeated, between buffers of inputs and queues of outputs."""

    phases: Sequence[Phase]
    slots: tuple[int, ...] = (0,)
    """Capacity of each input's buffer; 0: none, steps take from the stream itself."""
    latency: int = 0
    """Cycles from a step to its place in the output queue, of those in which all queues have room.
    These registers are no storage to count on: see `without_pipeline`."""
    depth: int = 2
    """Beats of the output queues; 0: no queue, a step is the offer itself."""
    outputs: int = 1
    grains: tuple[int, ...] = ()
    """Beats that one beat of each input adds to its buffer, if not 1."""
    once: Sequence[Phase] = ()
    """Phases before the first round only."""
    slides: bool = False
    """True if a step is also done while its full queue gives a beat: one register, as in
    `rom_source`. Every input must have a buffer."""

    def without_pipeline(self) -> Process:
        """Return the process with the least storage that any timing leaves it.

        The registers between a step and its queue move only while every queue has room. Where the
        inputs come slowly, they hold gaps instead of beats when a queue becomes full, and the gaps
        stay: then the process holds no beat beyond its queues. See `chop.hw.timing.liveness`.
        """
        return replace(self, latency=0)

    def grain(self, number: int) -> int:
        """Return the beats that one beat of an input adds to its buffer."""
        return self.grains[number] if self.grains else 1

    @cached_property
    def table(self) -> Table:
        """One row per step: bits taken, bits given, then what each input needs and frees."""
        inputs, phases = len(self.slots), [*self.once, *self.phases]
        table = np.zeros((sum(p.count for p in phases), 2 + 2 * inputs), dtype=np.int32)
        start = 0
        for phase in phases:
            rows = table[start : start + phase.count]
            rows[:, 0] = sum(1 << i for i in phase.takes)
            rows[:, 1] = sum(1 << j for j in phase.gives)
            for i, need in phase.needs.items():
                rows[:, 2 + i] = need + phase.rises * np.arange(phase.count)
            for i, freed in phase.frees.items():
                rows[:, 2 + inputs + i] = freed
            start += phase.count
        return table

    @cached_property
    def quiet(self) -> Table:
        """One row per step: the number of steps from it on that nothing outside sees.

        They neither take, give nor free. Then the beats that they need of each input.
        """
        phases = [*self.once, *self.phases]
        table = np.zeros((len(self.table), 1 + len(self.slots)), dtype=np.int32)
        start = 0
        for phase in phases:
            if not (phase.takes or phase.gives or any(phase.frees.values())):
                rows = table[start : start + phase.count]
                rows[:, 0] = phase.count - np.arange(phase.count)
                for i, need in phase.needs.items():
                    rows[:, 1 + i] = need + phase.rises * (phase.count - 1)
            start += phase.count
        return table

    @property
    def first(self) -> int:
        """The first step of a round."""
        return sum(p.count for p in self.once)

    @cached_property
    def steps(self) -> list[ProcessStep]:
        """The schedule, step by step."""
        inputs = len(self.slots)
        rows = self.table.tolist()
        return [
            ProcessStep(r[0], r[1], tuple(r[2 : 2 + inputs]), tuple(r[2 + inputs :])) for r in rows
        ]


class Machine:
    """A running process: the plain reference of `cycles.cpp`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.steps = process.steps
        self.at = 0
        self.levels = [0] * len(process.slots)
        self.counts = [0] * process.outputs
        self.high_water = 0
        self.pipeline = [0] * process.latency
        self._look()

    def _look(self) -> None:
        """Update the facts that follow from the state alone."""
        process, step = self.process, self.steps[self.at]
        self.has_room = not process.depth or max(self.counts) < process.depth
        self.is_here = all(a >= b for a, b in zip(self.levels, step.needs, strict=True))
        self.can_step = self.has_room and self.is_here
        self.offers = (
            [count > 0 for count in self.counts]
            if process.depth
            else [self.is_here and bool(step.gives >> j & 1) for j in range(process.outputs)]
        )

    @property
    def state(self) -> tuple[int, ...]:
        """The next step, then the level of each input buffer and of each output queue."""
        return (self.at, *self.levels, *self.counts)

    def takes(self, valid: Sequence[bool]) -> list[bool]:
        """Return which inputs would take a beat; `valid` says which offer one."""
        process, takes = self.process, self.steps[self.at].takes
        joined = [i for i in range(len(valid)) if takes >> i & 1]
        ready = []
        for i, slots in enumerate(process.slots):
            if slots:
                ready.append(self.levels[i] + process.grain(i) <= slots)
            else:
                others = all(valid[k] for k in joined if k != i)
                ready.append(self.can_step and i in joined and others)
        return ready

    def step(self, consumed: Sequence[bool], produced: Sequence[bool]) -> None:
        """Advance one clock edge with the beats that came and those that left."""
        process, step = self.process, self.steps[self.at]
        self.has_room |= process.slides and True in produced
        is_done = self.has_room and self.is_here
        waits = step.takes or not is_done or (step.gives and not process.depth)
        if waits and True not in consumed and True not in produced and not any(self.pipeline):
            return  # for speed: nothing changes
        if step.takes:
            is_done = consumed[(step.takes & -step.takes).bit_length() - 1]
        elif not process.depth and step.gives:
            is_done = produced[(step.gives & -step.gives).bit_length() - 1]
        self._advance(step.gives if is_done else 0, produced)
        for i, slots in enumerate(process.slots):
            if slots:
                self.levels[i] += consumed[i] * process.grain(i) - is_done * step.frees[i]
        if is_done:
            self.at = process.first if self.at == len(self.steps) - 1 else self.at + 1
        self._look()

    def _advance(self, entering: int, produced: Sequence[bool]) -> None:
        if not self.process.depth:
            return
        if self.has_room:
            self.pipeline.append(entering)
            leaving = self.pipeline.pop(0)
            self.counts = [count + (leaving >> j & 1) for j, count in enumerate(self.counts)]
        self.counts = [count - left for count, left in zip(self.counts, produced, strict=True)]
        self.high_water = max(self.high_water, *self.counts)
