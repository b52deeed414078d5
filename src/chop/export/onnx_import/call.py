"""A node about to run, with its operands in the form that its operator wants; the operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from chop.errors import ExportError
from chop.export.onnx_import.file import MAIN, Constant, Node
from chop.export.onnx_import.values import Host, Ints, as_tensor, host_of, is_host
from chop.files import shown

LARGEST_MADE = 1 << 28
"""Elements of what an operator may make of a few numbers."""
OWN = "chop"
"""The domain of nodes that stand for several of a file."""


class Scope(Protocol):
    """Where nodes run: folding of constants, or a model."""

    constants: dict[str, Constant]
    numbers: dict[str, Host | None]
    is_folding: bool

    def kind_of(self, number: int) -> str:
        """The name of a type by its number in files."""

    def is_fixed(self, name: str) -> bool:
        """Whether a value is made of constants and sizes alone."""

    def note_grid(self, name: str, grid: Any) -> None:
        """Remember what a constant is a multiple of."""

    def note_kind(self, name: str, kind: str) -> None:
        """Remember the type of a constant, where torch has no such."""

    def attached(self, name: str) -> Tensor:
        """A constant as a parameter or buffer of the model."""

    def matrix(self, name: str, *, turned: bool) -> tuple[nn.Parameter, str]:
        """A constant, or its transpose, as a parameter, and the name of what it came from."""

    def layer(self, key: tuple[Any, ...], hint: str, make: Callable[[], nn.Module]) -> Any:
        """The layer of this key, made where there is none yet and named by `hint`."""


class Call:
    """A node, the values made so far, and where it runs."""

    def __init__(self, node: Node, values: dict[str, Any], scope: Scope) -> None:
        self.node, self.scope, self._values = node, scope, values

    @property
    def version(self) -> int:
        """The opset."""
        return self.node.version

    @property
    def count(self) -> int:
        """How many inputs the node names."""
        return len(self.node.inputs)

    def given(self, place: int) -> bool:
        """Whether the node has this input."""
        return place < len(self.node.inputs) and bool(self.node.inputs[place])

    def name(self, place: int) -> str:
        """The name of an input."""
        return self.node.inputs[place]

    def constant(self, place: int) -> Tensor | None:
        """The input's values where they are known from the file."""
        if not self.given(place) or self.name(place) not in self.scope.constants:
            return None
        return self.scope.constants[self.name(place)].values

    def value(self, place: int) -> Any:
        """The input as it is: a tensor, numbers, a sequence."""
        if not self.given(place):
            raise ValueError(f"input {place} is missing")
        known = self.constant(place)
        if known is None:
            return self._values[self.name(place)]
        return known if self.scope.is_folding else self.scope.attached(self.name(place))

    def tensor(self, place: int) -> Tensor:
        """The input as a tensor."""
        return as_tensor(self.value(place))

    def optional(self, place: int) -> Tensor | None:
        """The input as a tensor, where it is there."""
        return self.tensor(place) if self.given(place) else None

    def operand(self, place: int) -> Any:
        """The input as a tensor, or as one number where it is just that."""
        known = self.constant(place)
        if known is not None and known.dim() == 0 and not self.scope.is_folding:
            number = self.scope.numbers.get(self.name(place))
            if number is not None:
                return number
        value = self.value(place)
        return as_tensor(value) if isinstance(value, Ints) else value

    def is_host(self, place: int) -> bool:
        """Whether the input is sizes, or computed from them."""
        return self.constant(place) is None and is_host(self.value(place))

    def host(self, place: int) -> Host | None:
        """The input as numbers, where it is known without running."""
        known = self.constant(place)
        if known is not None:
            return host_of(known) if self.scope.is_folding else self.scope.numbers[self.name(place)]
        value = self.value(place)
        return value if is_host(value) else None

    def hosts(self) -> list[Host] | None:
        """All inputs as numbers, where sizes are among them and no tensor is."""
        if not any(self.is_host(i) for i in range(self.count)):
            return None
        found = [self.host(i) for i in range(self.count)]
        kept = [f for f in found if f is not None]
        return kept if len(kept) == len(found) else None

    def numbers(self, place: int) -> list[Any]:
        """The input as a list of numbers; one that a tensor decides is an error."""
        found = self.host(place)
        if found is None:
            raise ExportError(
                f"its input {shown(self.name(place))} depends on values, not on sizes alone"
            )
        return list(found) if isinstance(found, Ints) else [found]

    def numbers_or_one(self, place: int) -> Host:
        """The input as numbers, a vector or one."""
        found = self.host(place)
        if found is None:
            self.numbers(place)  # which says why
        assert found is not None
        return found

    def dtype_of(self, place: int) -> torch.dtype | None:
        """The type of a tensor that is no number here."""
        known = self.constant(place)
        if known is None:
            value = self.value(place)
            return value.dtype if isinstance(value, Tensor) else None
        return known.dtype

    def number(self, place: int) -> Any:
        """The input as one number."""
        found = self.numbers(place)
        if len(found) != 1:
            raise ValueError(f"input {shown(self.name(place))} has {len(found)} elements, not one")
        return found[0]

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.node.attributes.get(name, default)

    def option(self, name: str, place: int, default: Any = None) -> Any:
        """Numbers that older opsets have as an attribute and newer ones as an input."""
        if self.given(place):
            return self.numbers(place)
        return self.attribute(name, default)


Operator = Callable[[Call], Any]
OPERATORS: dict[tuple[str, str], Operator] = {}
"""What is known, by domain and name. To add one, write a function under `@operator`."""


def operator(*names: str, domain: str = MAIN) -> Callable[[Operator], Operator]:
    """Register the function as these operators."""

    def register(function: Operator) -> Operator:
        for name in names:
            assert (domain, name) not in OPERATORS, f"operator {name} is there twice"
            OPERATORS[domain, name] = function
        return function

    return register


def known_operators() -> str:
    """What is known, in words."""
    names = [f"{d}:{n}" if d else n for d, n in sorted(OPERATORS) if d != OWN]
    return ", ".join(names)


def check_made(count: Any) -> None:
    """Refuse to make a tensor that a few bytes of a file ask for, and no memory holds."""
    if not 0 <= count <= LARGEST_MADE:
        raise ValueError(f"would make {count} elements; allowed are {LARGEST_MADE}")
