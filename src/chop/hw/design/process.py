"""The control of a component in one declarative place: buffers, steps, a pipeline, output queues.

A component does the same steps for ever. A step may take a beat straight from its inputs, read what
lies in the buffer of an input and free it, and give beats to outputs. It is done, one a cycle, when
all it needs is there and every output queue has room; what it gives comes `latency` cycles later
into the queue of its output, a skid buffer of two beats unless said otherwise. The model knows
no more, and that covers operands at different rates, rows that are read several times, double
buffers (a buffer of two tensors that is freed one tensor at a time) and several outputs:

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
    """`count` steps alike.

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
    """`count` beats straight through: one of each of `inputs`, one to each of `gives`."""
    return Phase(count, takes=inputs, gives=gives)


class Step(NamedTuple):
    """One row of a schedule; `takes` and `gives` have a bit for each input and output."""

    takes: int
    gives: int
    needs: tuple[int, ...]
    frees: tuple[int, ...]


@dataclass(frozen=True)
class Process:
    """The steps of `phases`, again and again, between buffers of inputs and queues of outputs."""

    phases: Sequence[Phase]
    slots: tuple[int, ...] = (0,)
    """Of each input: what its buffer holds; 0: none, steps take from the stream itself."""
    latency: int = 0
    """Cycles from a step to its place in the output queue, of those in which all queues have room.
    These registers are no storage to count on: see `without_pipeline`."""
    depth: int = 2
    """Of the output queues; 0: no queue, a step is the offer itself and done when it is taken."""
    outputs: int = 1
    grains: tuple[int, ...] = ()
    """Of each input: what a beat brings to its buffer, where it is not 1."""
    once: Sequence[Phase] = ()
    """What comes before the first round only."""
    slides: bool = False
    """Whether a step is also done while its full queue gives: one register, as in `rom_source`.
    Only where every input has a buffer."""

    def without_pipeline(self) -> Process:
        """Return the process with the least storage that any timing leaves it.

        The registers between a step and its queue move only while every queue has room. Where the
        inputs come slowly, they hold gaps instead of beats when a queue becomes full, and the gaps
        stay: then the process holds no beat beyond its queues. See `chop.hw.timing.liveness`.
        """
        return replace(self, latency=0)

    def grain(self, number: int) -> int:
        """What a beat of an input brings to its buffer."""
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
        """One row per step: the steps from it on that neither take, give nor free, so that nothing
        outside sees them; then what they need of each input."""
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
        """The step that a round begins with."""
        return sum(p.count for p in self.once)

    @cached_property
    def steps(self) -> list[Step]:
        """The schedule, step by step."""
        inputs = len(self.slots)
        rows = self.table.tolist()
        return [Step(r[0], r[1], tuple(r[2 : 2 + inputs]), tuple(r[2 + inputs :])) for r in rows]


class Machine:
    """A process at work: the plain reference of what `cycles.cpp` does."""

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
        """What the state alone says: whether the next step may be done, and where there is room."""
        process, step = self.process, self.steps[self.at]
        self.has_room = not process.depth or max(self.counts) < process.depth
        is_here = all(a >= b for a, b in zip(self.levels, step.needs, strict=True))
        self.is_here = is_here
        self.can_step = self.has_room and is_here
        if process.depth:
            self.offers = [count > 0 for count in self.counts]
        else:
            self.offers = [is_here and bool(step.gives >> j & 1) for j in range(process.outputs)]

    @property
    def state(self) -> tuple[int, ...]:
        """The next step, then the level of each input buffer and of each output queue."""
        return (self.at, *self.levels, *self.counts)

    def takes(self, valid: Sequence[bool]) -> list[bool]:
        """Which inputs would take a beat; `valid` says which offer one."""
        process, wanted = self.process, self.steps[self.at].takes
        joined = [i for i in range(len(valid)) if wanted >> i & 1]
        found = []
        for i, slots in enumerate(process.slots):
            if slots:
                found.append(self.levels[i] + process.grain(i) <= slots)
            else:
                others = all(valid[k] for k in joined if k != i)
                found.append(self.can_step and i in joined and others)
        return found

    def step(self, taken: Sequence[bool], given: Sequence[bool]) -> None:
        """One clock edge: the beats that came and those that left."""
        process, step = self.process, self.steps[self.at]
        self.has_room |= process.slides and True in given
        is_done = self.has_room and self.is_here
        waits = step.takes or not is_done or (step.gives and not process.depth)
        if waits and True not in taken and True not in given and not any(self.pipeline):
            return  # for speed: nothing changes
        if step.takes:
            is_done = taken[(step.takes & -step.takes).bit_length() - 1]
        elif not process.depth and step.gives:
            is_done = given[(step.gives & -step.gives).bit_length() - 1]
        self._advance(step.gives if is_done else 0, given)
        for i, slots in enumerate(process.slots):
            if slots:
                self.levels[i] += taken[i] * process.grain(i) - is_done * step.frees[i]
        if is_done:
            self.at = process.first if self.at == len(self.steps) - 1 else self.at + 1
        self._look()

    def _advance(self, entering: int, given: Sequence[bool]) -> None:
        """Pipeline and queues."""
        if not self.process.depth:
            return
        if self.has_room:
            self.pipeline.append(entering)
            leaving = self.pipeline.pop(0)
            self.counts = [count + (leaving >> j & 1) for j, count in enumerate(self.counts)]
        self.counts = [count - left for count, left in zip(self.counts, given, strict=True)]
        self.high_water = max(self.high_water, *self.counts)
