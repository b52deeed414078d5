"""One op of the hardware, one class: its formats, integers, instance, memories, cycles and cost.

To add a component, make a folder with `<module>.sv` and an `__init__.py` beside it: a class with
the methods below under `@register`, the function that makes it from a node
(`chop.hw.lower.lowers`) and the op by its definition (`chop.hw.reference.exact_ops.exact_op`). The
other files of a folder are listed in `chop.hw.design.folders`. A folder in `library/` is found by
its place; another one is known once it is imported. One test runs the `cases` of every component
and compares them with the RTL.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from chop.compat.old_names import lazy_names
from chop.errors import RegistryError
from chop.hw.arith.golden import ROUNDINGS, Fixed, Ints, Span
from chop.hw.design.cycle_model import Queue, Twin
from chop.hw.design.folders import HARDWARE, OWN_FOLDERS
from chop.hw.design.folders import ROOMS as ROOMS
from chop.hw.design.folders import rtl_sources as rtl_sources
from chop.hw.design.samples import row_ends
from chop.hw.design.stream import Stream
from chop.registry import Registry

Parameter = int | bool | str | tuple[int, ...]
"""Value of a module's parameter; several numbers are words of 64 bits, the first lowest."""
LARGEST_IN_LOGIC = 2048
"""Bits of a constant memory above which it becomes block RAM, whose words come late in a cycle."""


@dataclass(frozen=True)
class Memory:
    """Constant words of a component, one integer per address.

    A streamed memory becomes a `rom_source` named `<stage>_<name>_source`; another is read by the
    component itself, from the file that its parameter `parameter` names. Streamed `banks` are read
    in turn, each `repeats` times.
    """

    name: str
    words: tuple[int, ...]
    width: int
    is_streamed: bool = True
    parameter: str = "INIT_FILE"
    banks: int = 1
    repeats: int = 1

    @property
    def bits(self) -> int:
        """Size in bits."""
        return self.width * len(self.words)


@dataclass(frozen=True)
class ComponentCost:
    """Operators and storage in the RTL of an instance, before synthesis.

    They are the same on every FPGA. Sharing of layers compares them, folding has a budget of
    multipliers, and the roofline and the report show them.

    The area models (`chop.hw.area`) are separate, because they answer another question: how many
    look-up tables, flip-flops, DSP blocks and block RAMs synthesis makes of an instance on one FPGA
    family. A multiplier becomes none, one or several DSP blocks, by family and width. And some
    components have a cost but no area model, because no measurements exist
    (`chop.hw.area.area_model.unmodelled`).
    """

    multipliers: int = 0
    memory_bits: int = 0
    register_bits: int = 0

    def __add__(self, other: ComponentCost) -> ComponentCost:
        return ComponentCost(
            self.multipliers + other.multipliers,
            self.memory_bits + other.memory_bits,
            self.register_bits + other.register_bits,
        )


class Component(ABC):
    """A module of the library with its sizes and constants chosen."""

    module: ClassVar[str]
    """The RTL module; several components may be kinds of one."""
    name: ClassVar[str] = ""
    """Name of the component, if it is not that of its module."""
    is_clocked: ClassVar[bool] = True
    pins: ClassVar[tuple[str, ...]] = ()
    """The module's ports for `inputs`, if they are not data_in_0, data_in_1 …"""
    has_sums: ClassVar[bool] = True
    """True if it computes with numbers; a component that moves or looks up data does not."""
    has_scales: ClassVar[bool] = False
    """True if it treats rows of small numbers differently: tests then include some."""
    inputs: tuple[Stream, ...]
    outputs: tuple[Stream, ...]

    @abstractmethod
    def golden(self, *data: Ints) -> Ints:
        """Return output codes for batches of input codes, shape (tensors, *stream.shape) each."""

    @abstractmethod
    def parameters(self) -> Mapping[str, Parameter]:
        """Return the values of the module's parameters."""

    def memories(self) -> tuple[Memory, ...]:
        """Return the constant memories."""
        return ()

    def ends(self) -> tuple[Ints, ...]:
        """Return input codes that drive every sum and product to both ends of its range.

        One array of tensors for each input; nothing for a component without sums.
        """
        return row_ends(self.inputs) if self.has_sums else ()

    def intervals(self) -> Mapping[str, Span]:
        """Return the exact range of each sum whose width is a parameter, by the parameter."""
        return {}

    def reads(self, memory: Memory) -> int:
        """Return how often a tensor reads all words of a streamed memory."""
        return self.outputs[0].beats // len(memory.words)

    def in_pass(self, number: int) -> Component:
        """Return the component of one pass through a block that layers share: itself."""
        return self

    def for_clock(self, clock_mhz: float) -> Component:
        """Return the component with the registers for a clock; itself without a choice."""
        return self

    @classmethod
    def cases(cls) -> Sequence[Component]:
        """Return components to test: sizes, formats and parallelisms that differ in kind."""
        return ()

    @abstractmethod
    def twins(self) -> list[Twin]:
        """Return the cycle model, as a chain; empty for a combinational pass-through."""

    def cycles(self) -> int:
        """Return the folding bound: least cycles between tensors without stalls."""
        return max(s.beats for s in (*self.inputs, *self.outputs))

    def products(self) -> int:
        """Return the products of a tensor with constants that can be folded."""
        return 0

    @property
    def in_unit(self) -> int:
        """Number that the lanes of the first input must divide."""
        return self.inputs[0].shape[-1]

    def cost(self) -> ComponentCost:
        """Return the operators and storage of one instance (see `ComponentCost`)."""
        return ComponentCost(memory_bits=sum(m.bits for m in self.memories()))

    def pin(self, number: int) -> str:
        """Return the module's port for an input."""
        return self.pins[number] if self.pins else f"data_in_{number}"

    @property
    def kind(self) -> str:
        """Name in reports: its own, or that of its module."""
        return self.name or self.module

    @property
    def output(self) -> Stream:
        """The only output stream."""
        return self.outputs[0]


COMPONENTS: Registry[type[Component]] = Registry("hardware component")
OWN_SOURCES: dict[str, Path] = {}
"""The folders of modules that are not the library's."""
C = TypeVar("C", bound=Component)


def has_streamed(component: Component) -> bool:
    """Return True if the component reads a constant memory word by word, as a stream."""
    return any(memory.is_streamed for memory in component.memories())


def register(cls: type[C]) -> type[C]:
    """Register a component by its name, by default that of its module.

    Its RTL is `<module>.sv` beside the file of the class, or the library's. If the class is in the
    `__init__.py` of a folder outside the package, the folder becomes a component folder.
    """
    cls.name = cls.__dict__.get("name") or cls.module
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    folder = Path(file).resolve().parent if file else HARDWARE
    if not folder.is_relative_to(HARDWARE) and (folder / f"{cls.module}.sv").is_file():
        if cls.module in rtl_sources():
            raise RegistryError(
                f"{folder}: '{cls.module}' is a module of the library. Give yours another name."
            )
        OWN_SOURCES[cls.module] = folder
        if hasattr(module, "__path__"):
            OWN_FOLDERS[cls.__module__] = folder
    COMPONENTS.register(cls.name, cls)
    return cls


@dataclass(frozen=True)
class Unary(Component):
    """One element in, one out, through a skid buffer."""

    source: Stream
    format: Fixed
    """Format of the output."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (replace(self.source, format=self.format),))

    @property
    def frac_width(self) -> int:
        """Fractional bits of the input."""
        return self.source.format.frac_width

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **precision("DATA_IN_0", self.source.format),
            **result_precision(self.format),
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
        }

    def twins(self) -> list[Twin]:
        return [Queue(2)]

    def cost(self) -> ComponentCost:
        return super().cost() + ComponentCost(register_bits=2 * self.outputs[0].beat_width)


@dataclass(frozen=True)
class Mover(Component):
    """A component whose output is its input."""

    stream: Stream
    has_sums = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", (self.stream,))
        object.__setattr__(self, "outputs", (self.stream,))

    def golden(self, *data: Ints) -> Ints:
        return data[0]


def precision(prefix: str, number: Fixed) -> dict[str, Parameter]:
    """Return the parameters of a port: bits of an element and of an exponent, and no sign."""
    widths: dict[str, Parameter] = {
        f"{prefix}_PRECISION_0": number.lane_width,
        f"{prefix}_PRECISION_1": number.frac_width,
    }
    if number.shared_width:
        widths[f"{prefix}_EXPONENT_WIDTH"] = number.shared_width
    return widths if number.is_signed else widths | {f"{prefix}_IS_SIGNED": False}


def result_precision(number: Fixed) -> dict[str, Parameter]:
    """Return the parameters of `data_out_0`: its numbers, rounding and overflow."""
    parameters = precision("DATA_OUT_0", number)
    if number.rounding != "nearest_even":
        parameters["DATA_OUT_0_ROUNDING"] = ROUNDINGS.index(number.rounding)
    if number.narrow or number.overflow == "wrap":
        parameters["DATA_OUT_0_OVERFLOW"] = 1 if number.narrow else 2
    return parameters


def sign_parameter(number: Fixed) -> dict[str, Parameter]:
    """Return the parameter of modules that only move numbers."""
    return {} if number.is_signed else {"DATA_IN_0_IS_SIGNED": False}


if not TYPE_CHECKING:  # mypy would accept any name
    __getattr__ = lazy_names(__name__)
