"""Cycle models: a component's twin keeps its handshake state and no data.

In the RTL, `valid` depends on state alone, and `ready` on state and, where streams are joined, on
the other streams' `valid`. A cycle is: read these claims, see which streams carry a beat, then move
every twin. The twins of a design give its exact cycle counts (also under the simulator's random
stalls), and show a deadlock, without a simulator.

A twin declares its control by `process` (`chop.hw.design.process`); the model then runs it
compiled. A twin that cannot be declared so shows `gives` and `takes` and moves by `step`, in
Python. Twins that several components share are here; the others are with their components.
"""

from __future__ import annotations

from typing import Any, ClassVar

from chop.errors import HardwareError
from chop.hw.design.process import Phase, Process, take
from chop.registry import Registry, suggest

TWINS: Registry[type[Twin]] = Registry("cycle model")
"""The twins that files may keep, by their names."""


class Twin:
    """Handshake of one component: a `process`, or its own state that moves by `step`.

    With its own `step` and two `inputs` it takes a beat of both at once.
    """

    name: ClassVar[str] = ""
    """Name in files; a twin without one cannot be stored."""
    inputs = 1
    sources: tuple[int, ...] | None = None
    """Its sources inside its component: numbers of the component's inputs, and -1 for the twin
    before it. None: the first of a chain has all inputs, each other one the twin before it."""
    arguments: tuple[Any, ...] = ()
    """Arguments of its constructor, in numbers."""
    gives = False
    """True if the output offers a beat."""
    takes = True
    """True if the input would take a beat."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            TWINS.register(cls.name, cls)

    @classmethod
    def made(cls, *arguments: Any) -> Twin:
        """Return the twin with these `arguments`."""
        return cls(*arguments)

    def process(self) -> Process:
        """Return the control, declared."""
        raise NotImplementedError(f"{type(self).__name__} has no process: it moves by `step`")

    def step(self, consumed: bool, produced: bool) -> None:
        """Advance one clock edge: the input was taken, the output was given."""
        raise NotImplementedError(f"{type(self).__name__} has no `step`: see its process")


def declared(twin: Twin) -> Process | None:
    """Return the process of `twin`; None if its own `step` counts.

    Of the two, the one defined nearer to the class of `twin` counts.
    """
    for cls in type(twin).__mro__:
        if "process" in vars(cls):
            return twin.process()
        if "step" in vars(cls):
            return None
    raise AssertionError("Twin itself has both")


class Queue(Twin):
    """`fifo`, and with depth 2 `skid_buffer` and every component that ends in one.

    `latency`: registers between the operands and the queue, which move while it has room.
    """

    name = "Queue"

    def __init__(self, depth: int = 2, latency: int = 0) -> None:
        self.arguments = (depth, latency) if latency else (depth,)
        self.depth, self.latency = depth, latency
        self.count = 0
        self.high_water = 0

    def process(self) -> Process:
        phases = (take(inputs=tuple(range(self.inputs))),)
        once = () if type(self).takes else (Phase(),)  # constants come from the second cycle on
        slots = (0,) * self.inputs
        return Process(phases, slots, self.latency, depth=self.depth, once=once)

    def step(self, consumed: bool, produced: bool) -> None:
        self.count += consumed - produced
        self.gives = self.count > 0
        self.takes = self.count < self.depth
        self.high_water = max(self.high_water, self.count)


class ConstantsTwin(Queue):
    """A skid buffer whose other operands come from `rom_source`: valid from the second cycle on."""

    name = "Constants"
    takes = False


class Bracket(Twin):
    """An enable-gated pipeline of `latency` cycles into a skid buffer that gives the enable."""

    name = "Bracket"

    def __init__(self, latency: int) -> None:
        self.arguments = (latency,)
        self.top_bit = latency - 1
        self.mask = (1 << latency) - 1
        self.line = 0
        self.count = 0

    def process(self) -> Process:
        return Process((take(),), latency=self.top_bit + 1)

    def step(self, consumed: bool, produced: bool) -> None:
        self.advance(consumed, produced)
        self.takes = self.count < 2

    def advance(self, enters: bool, leaves: bool) -> None:
        """Advance one clock edge; `enters` counts only while the pipeline is enabled."""
        if self.count < 2:
            self.count += self.line >> self.top_bit
            self.line = (self.line << 1 | enters) & self.mask
        self.count -= leaves
        self.gives = self.count > 0


TwinRecord = tuple[Any, ...]
"""A twin in plain data: its name, then its arguments."""


def record(twin: Twin) -> TwinRecord | None:
    """Return a twin in plain data; None for a class without its own name."""
    name = vars(type(twin)).get("name")
    return (name, *twin.arguments) if name else None


def from_record(record: TwinRecord) -> Twin:
    """Return the twin of a record.

    >>> from_record(("Queue", 2)).arguments
    (2,)
    """
    name, *arguments = record
    if name not in TWINS:
        raise HardwareError(f"cycle model: unknown twin '{name}'. {suggest(name, TWINS)}")
    return TWINS[name].made(*arguments)
