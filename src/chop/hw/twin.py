"""Control-only cycle models: for each component, a twin that keeps its handshake state and no data.

In the RTL, `valid` depends on state alone, and `ready` on state and, where streams are joined, on
the other stream's `valid`. So a twin shows two claims about its state, `gives` and `takes`, and a
cycle is: read the claims, see which streams carry a beat, then `step` every twin. The twins of a
design give its exact cycle counts (also under the simulator's random stalls), and show a deadlock,
without a simulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import astuple, dataclass
from typing import Any

from chop.errors import HardwareError
from chop.registry import suggest


class Twin(ABC):
    """Handshake state of one component; with two `inputs` it takes a beat of both at once."""

    inputs = 1
    arguments: tuple[Any, ...] = ()
    """What it was made with, in numbers: files keep it, to make it again."""
    gives = False
    """Whether the output offers a beat."""
    takes = True
    """Whether the input would take one."""

    @abstractmethod
    def step(self, taken: bool, given: bool) -> None:
        """One clock edge: the input was taken, the output was given."""


class Queue(Twin):
    """`fifo`, and with depth 2 `skid_buffer` and every component that ends in one."""

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


class Join(Queue):
    """Two operands taken together into a skid buffer."""

    inputs = 2


class Constants(Queue):
    """A skid buffer whose other operands come from `rom_source`: valid from the second cycle on."""

    takes = False


class Fork(Twin):
    """`stream_fork`: one skid buffer per branch, loaded together."""

    def __init__(self, branches: int) -> None:
        self.arguments = (branches,)
        self.counts = [0] * branches
        self.gives_each = [False] * branches

    def step(self, taken: bool, given: bool) -> None:
        self.step_each(taken, [given] * len(self.counts))

    def step_each(self, taken: bool, given: list[bool]) -> None:
        """One clock edge: the input was taken, some branches were given."""
        self.counts = [count + taken - left for count, left in zip(self.counts, given, strict=True)]
        self.gives_each = [count > 0 for count in self.counts]
        self.takes = max(self.counts) < 2


class Gearbox(Twin):
    """`gearbox`: a count of elements, in units that divide both beats."""

    def __init__(self, in_units: int, out_units: int) -> None:
        self.arguments = (in_units, out_units)
        self.in_units, self.out_units = in_units, out_units
        is_even = in_units % out_units == 0 or out_units % in_units == 0
        capacity = in_units + out_units + (0 if is_even else in_units)
        self.most = capacity - in_units
        self.count = 0

    def step(self, taken: bool, given: bool) -> None:
        self.count += taken * self.in_units - given * self.out_units
        self.gives = self.count >= self.out_units
        self.takes = self.count <= self.most


class Reorder(Twin):
    """`stream_reorder`: two banks, one filled while the other is emptied."""

    def __init__(self, beats: int) -> None:
        self.arguments = (beats,)
        self.beats = beats
        self.written = self.read = self.full = 0

    def step(self, taken: bool, given: bool) -> None:
        self.written += taken
        self.read += given
        if self.written == self.beats:
            self.written, self.full = 0, self.full + 1
        if self.read == self.beats:
            self.read, self.full = 0, self.full - 1
        self.gives = self.full > 0
        self.takes = self.full < 2


class Bracket(Twin):
    """An enable-gated pipeline of `latency` cycles into a skid buffer that gives the enable."""

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


class Linear(Bracket):
    """`fixed_linear`: a replay buffer that feeds the dot products, `folds` = (input, output)."""

    def __init__(self, folds: tuple[int, int], lanes: int) -> None:
        # operand, product and sum registers of `fixed_dot_product`, then the accumulator
        super().__init__(latency=1 + min(lanes, 4) + (lanes > 4) + 1)
        self.arguments = (folds, lanes)
        self.in_folds, self.out_folds = folds
        self.slots = 2 if self.out_folds == 1 or self.in_folds < 2 else self.in_folds
        self.level = self.in_fold = self.out_fold = 0

    def step(self, taken: bool, given: bool) -> None:
        is_last_pass = self.out_fold == self.out_folds - 1
        is_last = self.in_fold == self.in_folds - 1
        has_operand = self.level > 0 if is_last_pass else self.in_fold < self.level
        issues = has_operand and self.count < 2
        self.advance(issues and is_last, given)
        self.level += taken - (issues and is_last_pass)
        self.takes = self.level < self.slots
        if issues:
            self.in_fold = 0 if is_last else self.in_fold + 1
            if is_last:
                self.out_fold = 0 if is_last_pass else self.out_fold + 1


@dataclass(frozen=True)
class Geometry:
    """A window over an image: pairs are (columns, rows); `beats` per pixel."""

    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    beats: int = 1

    @property
    def out_size(self) -> tuple[int, int]:
        """Columns and rows of windows."""
        columns, rows = (
            (n + 2 * p - k) // s + 1
            for n, k, s, p in zip(self.size, self.kernel, self.stride, self.padding, strict=True)
        )
        return columns, rows

    @property
    def lines(self) -> int:
        """Rows that `sliding_window` keeps."""
        return max(self.kernel[1], self.stride[1], self.last_freed) + self.stride[1]

    @property
    def last_top(self) -> int:
        """Row of the last windows."""
        return (self.out_size[1] - 1) * self.stride[1] - self.padding[1]

    @property
    def last_freed(self) -> int:
        """Rows that the last windows leave behind."""
        return self.size[1] - max(self.last_top, 0)


class Window(Bracket):
    """`sliding_window`: which beats of the image have come, and which window beat is next."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(latency=1)
        self.arguments = astuple(geometry)
        self.row_beats = geometry.size[0] * geometry.beats
        self.lines = geometry.lines
        self.schedule = _window_schedule(geometry)
        self.next = self.beat = self.held = 0

    def step(self, taken: bool, given: bool) -> None:
        line, beat, freed = self.schedule[self.next]
        if line < 0:  # padding, but not before the image has begun
            is_here = self.held > 0 or self.beat > 0
        else:
            is_here = line < self.held or (line == self.held and beat < self.beat)
        issues = is_here and self.held >= freed and self.count < 2
        self.advance(issues, given)
        if taken:
            self.beat += 1
            if self.beat == self.row_beats:
                self.beat, self.held = 0, self.held + 1
        if issues:
            self.held -= freed
            self.next = 0 if self.next == len(self.schedule) - 1 else self.next + 1
        self.takes = self.held < self.lines


def _window_schedule(g: Geometry) -> list[tuple[int, int, int]]:
    """For each window beat: the kept line and beat it reads (line -1: padding), lines freed."""
    schedule = []
    for out_row in range(g.out_size[1]):
        top = out_row * g.stride[1] - g.padding[1]
        first = max(top, 0)
        for out_column in range(g.out_size[0]):
            left = out_column * g.stride[0] - g.padding[0]
            for row in range(top, top + g.kernel[1]):
                for column in range(left, left + g.kernel[0]):
                    inside = 0 <= row < g.size[1] and 0 <= column < g.size[0]
                    line = row - first if inside else -1
                    schedule += [(line, column * g.beats + b, 0) for b in range(g.beats)]
        freed = g.last_freed if top == g.last_top else max(top + g.stride[1], 0) - first
        schedule[-1] = (*schedule[-1][:2], freed)
    return schedule


class Reduce(Queue):
    """The reduction of pooling: `area` beats per channel beat in, one out."""

    def __init__(self, area: int, beats: int) -> None:
        super().__init__()
        self.arguments = (area, beats)
        self.total, self.silent = area * beats, (area - 1) * beats
        self.seen = 0

    def step(self, taken: bool, given: bool) -> None:
        super().step(taken and self.seen >= self.silent, given)
        if taken:
            self.seen = 0 if self.seen == self.total - 1 else self.seen + 1


Record = tuple[Any, ...]
"""A twin in plain data: its name, then its arguments."""
_TWINS: dict[str, type[Twin]] = {
    cls.__name__: cls
    for cls in (Queue, Join, Constants, Fork, Gearbox, Reorder, Bracket, Linear, Window, Reduce)
}


def record(twin: Twin) -> Record | None:
    """What files keep of a twin; None for a class that is not one of these."""
    name = type(twin).__name__
    return (name, *twin.arguments) if _TWINS.get(name) is type(twin) else None


def from_record(told: Record) -> Twin:
    """The twin of a record.

    >>> from_record(("Gearbox", 2, 3)).arguments
    (2, 3)
    """
    name, *arguments = told
    if name not in _TWINS:
        raise HardwareError(f"cycle model: unknown twin '{name}'. {suggest(name, _TWINS)}")
    if name == Window.__name__:
        return Window(Geometry(*arguments))
    make: Any = _TWINS[name]
    twin: Twin = make(*arguments)
    return twin
