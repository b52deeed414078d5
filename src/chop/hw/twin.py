"""Cycle models: a component's twin keeps its handshake state and no data.

In the RTL, `valid` depends on state alone, and `ready` on state and, where streams are joined, on
the other stream's `valid`. So a twin shows two claims about its state, `gives` and `takes`, and a
cycle is: read the claims, see which streams carry a beat, then `step` every twin. The twins of a
design give its exact cycle counts (also under the simulator's random stalls), and show a deadlock,
without a simulator. Here are those that several components share; the others are with theirs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from chop.errors import HardwareError
from chop.registry import Registry, suggest

TWINS: Registry[type[Twin]] = Registry("cycle model")
"""The twins that files may keep, by their names."""


class Twin(ABC):
    """Handshake state of one component; with two `inputs` it takes a beat of both at once."""

    name: ClassVar[str] = ""
    """What files call it, where they may keep it: then `arguments` make it again."""
    inputs = 1
    arguments: tuple[Any, ...] = ()
    """What it was made with, in numbers."""
    gives = False
    """Whether the output offers a beat."""
    takes = True
    """Whether the input would take one."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            TWINS.register(cls.name, cls)

    @classmethod
    def made(cls, *arguments: Any) -> Twin:
        """The twin with these `arguments`."""
        return cls(*arguments)

    @abstractmethod
    def step(self, taken: bool, given: bool) -> None:
        """One clock edge: the input was taken, the output was given."""


class Queue(Twin):
    """`fifo`, and with depth 2 `skid_buffer` and every component that ends in one."""

    name = "Queue"

    def __init__(self, depth: int = 2) -> None:
        self.arguments = (depth,)
        self.depth = depth
        self.count = 0
        self.high_water = 0

    def step(self, taken: bool, given: bool) -> None:
        self.count += taken - given
        self.gives = self.count > 0
        self.takes = self.count < self.depth
        if self.count > self.high_water:
            self.high_water = self.count


class Bracket(Twin):
    """An enable-gated pipeline of `latency` cycles into a skid buffer that gives the enable."""

    name = "Bracket"

    def __init__(self, latency: int) -> None:
        self.arguments = (latency,)
        self.top_bit = latency - 1
        self.mask = (1 << latency) - 1
        self.line = 0
        self.count = 0

    def step(self, taken: bool, given: bool) -> None:
        self.advance(taken, given)
        self.takes = self.count < 2

    def advance(self, enters: bool, leaves: bool) -> None:
        """One clock edge; `enters` is only looked at while the pipeline is enabled."""
        if self.count < 2:
            self.count += self.line >> self.top_bit
            self.line = (self.line << 1 | enters) & self.mask
        self.count -= leaves
        self.gives = self.count > 0


TwinRecord = tuple[Any, ...]
"""A twin in plain data: its name, then its arguments."""


def record(twin: Twin) -> TwinRecord | None:
    """What files keep of a twin; None for a class without a name of its own."""
    name = vars(type(twin)).get("name")
    return (name, *twin.arguments) if name else None


def from_record(told: TwinRecord) -> Twin:
    """The twin of a record.

    >>> from_record(("Queue", 2)).arguments
    (2,)
    """
    name, *arguments = told
    if name not in TWINS:
        raise HardwareError(f"cycle model: unknown twin '{name}'. {suggest(name, TWINS)}")
    return TWINS[name].made(*arguments)
