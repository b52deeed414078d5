"""Values of a run: tensors, and sizes, which stay numbers so that graphs stay dynamic.

`Shape` returns numbers (`Ints`), and so do operators on numbers; they become a tensor on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.ir.trace.tracked import Tracked, combine

LONGEST = 256
"""Limit on the elements of a constant that is read as numbers."""
BITS = 64
"""Bits of an integer, as of a size in ONNX."""


class Ints(list[Any]):
    """Vector of numbers."""


@dataclass(frozen=True)
class ArangeValue:
    """Result of `Range` on numbers: a tensor, or numbers if an operator needs them."""

    start: Any
    limit: Any
    step: Any
    kind: torch.dtype

    def tensor(self) -> Tensor:
        """Return the tensor; sizes in it stay open."""
        return torch.arange(self.start, self.limit, self.step, dtype=self.kind)

    def numbers(self) -> Ints:
        """Return the numbers, which are valid for these sizes."""
        return Ints(range(int(self.start), int(self.limit), int(self.step)))


Number = int | float
Host = Number | Ints
"""Number or vector of numbers."""


def is_host(value: Any) -> bool:
    """Return True if a value is a number or a vector of numbers."""
    return isinstance(value, int | float | Ints)


def host_of(constant: Tensor) -> Host | None:
    """Return a small constant as numbers, or None."""
    if constant.dim() > 1 or constant.numel() > LONGEST:
        return None
    if constant.dtype.itemsize == 1 and constant.is_floating_point():
        return None
    numbers = constant.tolist()
    return Ints(numbers) if isinstance(numbers, list) else numbers


def elementwise(function: Callable[..., Any], *operands: Host) -> Host:
    """Apply a function of numbers to each element of vectors that broadcast."""
    vectors = [o for o in operands if isinstance(o, Ints)]
    if not vectors:
        return _apply(function, *operands)  # type: ignore[no-any-return]
    length = max(len(v) for v in vectors)
    rows = []
    for operand in operands:
        values = list(operand) if isinstance(operand, Ints) else [operand]
        rows.append(values * length if len(values) == 1 else values)
    return Ints(_apply(function, *row) for row in zip(*rows, strict=True))


def _apply(function: Callable[..., Any], *numbers: Any) -> Any:
    """Apply a function of numbers; raise ValueError if the result, or a power, leaves 64 bits."""
    if function is pow and all(type(n) is int for n in numbers):
        base, exponent = numbers
        if exponent * max(base.bit_length(), 1) > BITS:
            raise ValueError(f"{base} to the power of {exponent}: more than {BITS} bits")
    is_choice = function in (max, min) and any(isinstance(n, Tracked) for n in numbers)
    result = combine(function, *numbers) if is_choice else function(*numbers)
    if type(result) is int and result.bit_length() > BITS:
        raise ValueError(f"a whole number of {result.bit_length()} bits. Allowed: {BITS}")
    return result


def as_tensor(value: Any) -> Tensor:
    """Return numbers as a tensor of int64, float32 or bool."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, ArangeValue):
        return value.tensor()
    first = next(iter(value), 0) if isinstance(value, Ints) else value
    if isinstance(first, bool):
        kind = torch.bool
    else:
        kind = torch.float32 if isinstance(first, float) else torch.int64
    return torch.tensor(list(value) if isinstance(value, Ints) else value, dtype=kind)
