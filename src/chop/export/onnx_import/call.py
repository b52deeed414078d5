"""Call of a node, with access to its operands in several forms, and the table of operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from chop.errors import ExportError
from chop.export.onnx_import.host_values import ArangeValue, Host, Ints, as_tensor, host_of, is_host
from chop.export.onnx_import.onnx_file import MAIN, OnnxConstant, OnnxNode, Subgraph
from chop.files import shown
from chop.ir.trace.tracked import plain

LARGEST_MADE = 1 << 28
"""Limit on the elements of a tensor that an operator creates from a few numbers."""
OWN = "chop"
"""Domain of nodes that replace several nodes of a file."""


class Scope(Protocol):
    """Environment of nodes: the folding of constants, or a model."""

    constants: dict[str, OnnxConstant]
    numbers: dict[str, Host | None]
    is_folding: bool
    has_open_sizes: bool

    def kind_of(self, number: int) -> str:
        """Return the name of a type by its number in files."""

    def is_fixed(self, name: str) -> bool:
        """Return True if a value depends on constants and sizes alone."""

    def note_grid(self, name: str, grid: Any) -> None:
        """Store the grid of a constant."""

    def kind(self, name: str) -> str | None:
        """Return the type of a value in ONNX, if it is known."""

    def attached(self, name: str) -> Tensor:
        """Return a constant as a parameter or buffer of the model."""

    def matrix(self, name: str, *, turned: bool) -> tuple[nn.Parameter, str]:
        """Return a constant, or its transpose, as a parameter, and the name of its origin."""

    def layer(self, key: tuple[Any, ...], hint: str, make: Callable[[], nn.Module]) -> Any:
        """Return the layer of this key; create it, named by `hint`, if there is none."""

    def run_graph(self, graph: Subgraph, values: dict[str, Any]) -> list[Any]:
        """Return the outputs of a graph inside a node."""


class Call:
    """Node with the values so far and its scope."""

    def __init__(self, node: OnnxNode, values: dict[str, Any], scope: Scope) -> None:
        self.node, self.scope, self._values = node, scope, values

    @property
    def version(self) -> int:
        """Opset of the node."""
        return self.node.version

    @property
    def count(self) -> int:
        """Number of inputs."""
        return len(self.node.inputs)

    def given(self, place: int) -> bool:
        """Return True if the node has this input."""
        return place < len(self.node.inputs) and bool(self.node.inputs[place])

    def name(self, place: int) -> str:
        """Return the name of an input."""
        return self.node.inputs[place]

    def constant(self, place: int) -> Tensor | None:
        """Return the values of a constant input, or None."""
        if not self.given(place) or self.name(place) not in self.scope.constants:
            return None
        return self.scope.constants[self.name(place)].values

    def value(self, place: int) -> Any:
        """Return the input: a tensor, numbers, a sequence."""
        if not self.given(place):
            raise ValueError(f"input {place} is missing")
        constant = self.constant(place)
        if constant is None:
            return self._values[self.name(place)]
        return constant if self.scope.is_folding else self.scope.attached(self.name(place))

    def tensor(self, place: int) -> Tensor:
        """Return the input as a tensor."""
        return as_tensor(self.value(place))

    def optional(self, place: int) -> Tensor | None:
        """Return the input as a tensor, or None if it is missing."""
        return self.tensor(place) if self.given(place) else None

    def operand(self, place: int) -> Any:
        """Return the input as a tensor, or as a number if it is one."""
        constant = self.constant(place)
        if constant is not None and constant.dim() == 0 and not self.scope.is_folding:
            number = self.scope.numbers.get(self.name(place))
            if number is not None:
                return number
        value = self.value(place)
        return as_tensor(value) if isinstance(value, Ints | ArangeValue) else value

    def is_host(self, place: int) -> bool:
        """Return True if the input is sizes, or computed from them."""
        return self.constant(place) is None and is_host(self.value(place))

    def host(self, place: int) -> Host | None:
        """Return the input as numbers if it does not depend on tensors, or None."""
        constant = self.constant(place)
        if constant is not None:
            name = self.name(place)
            return host_of(constant) if self.scope.is_folding else self.scope.numbers[name]
        value = self.value(place)
        return value if is_host(value) else None

    def hosts(self) -> list[Host] | None:
        """Return all inputs as numbers if some are sizes and none are tensors, or None."""
        if not any(self.is_host(i) for i in range(self.count)):
            return None
        hosts = [self.host(i) for i in range(self.count)]
        numbers = [h for h in hosts if h is not None]
        return numbers if len(numbers) == len(hosts) else None

    def numbers(self, place: int) -> list[Any]:
        """Return the input as a list of numbers; raise if it depends on tensors."""
        numbers = self.numbers_or_one(place)
        return list(numbers) if isinstance(numbers, Ints) else [numbers]

    def numbers_or_one(self, place: int) -> Host:
        """Return the input as numbers, a vector or one; raise if it depends on tensors."""
        value = None if self.constant(place) is not None else self.value(place)
        numbers = value.numbers() if isinstance(value, ArangeValue) else self.host(place)
        if numbers is None:
            raise ExportError(
                f"its input {shown(self.name(place))} depends on values, not on sizes alone"
            )
        return numbers

    def kind(self, place: int) -> str | None:
        """Return the type of the input in ONNX, if it is known."""
        return self.scope.kind(self.name(place)) if self.given(place) else None

    def dtype_of(self, place: int) -> torch.dtype | None:
        """Return the dtype of the input, or None if it is a number."""
        value = self.value(place) if self.constant(place) is None else self.constant(place)
        return value.dtype if isinstance(value, Tensor) else None

    def number(self, place: int) -> Any:
        """Return the input as one number."""
        numbers = self.numbers(place)
        if len(numbers) != 1:
            raise ValueError(
                f"input {shown(self.name(place))} has {len(numbers)} elements, not one"
            )
        return numbers[0]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.node.attributes.get(name, default)

    def run(self, graph: Subgraph, *inputs: Any) -> list[Any]:
        """Return the outputs of a graph inside the node."""
        values = {**self._values, **dict(zip(graph.inputs, inputs, strict=True))}
        return self.scope.run_graph(graph, values)

    def option(self, name: str, place: int, default: Any = None) -> Any:
        """Return numbers that are an attribute in older opsets and an input in newer ones."""
        if self.given(place):
            return self.numbers(place)
        return self.attribute(name, default)


Operator = Callable[[Call], Any]
OPERATORS: dict[tuple[str, str], Operator] = {}
"""Operators by domain and name. To add one, decorate a function with `@operator`."""


def operator(*names: str, domain: str = MAIN) -> Callable[[Operator], Operator]:
    """Register the function as these operators."""

    def register(function: Operator) -> Operator:
        for name in names:
            assert (domain, name) not in OPERATORS, f"operator {name} is there twice"
            OPERATORS[domain, name] = function
        return function

    return register


def register_operators(table: Mapping[str, Operator]) -> None:
    """Register the operators of ONNX that are one expression, by name."""
    for name, function in table.items():
        operator(name)(function)


def known_operators() -> str:
    """Return the names of all operators as text."""
    return ", ".join(f"{d}:{n}" if d else n for d, n in sorted(OPERATORS) if d != OWN)


def check_made(count: Any) -> None:
    """Raise if a few bytes of a file ask for a tensor of too many elements.

    A capture records no guard for it: the limit is about the sizes of the first run.
    """
    number = plain(count)
    if not 0 <= number <= LARGEST_MADE:
        raise ValueError(f"would make {number} elements; allowed are {LARGEST_MADE}")
