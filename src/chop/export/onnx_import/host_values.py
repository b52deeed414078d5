"""Values of a run: tensors, and sizes, which stay numbers so that graphs stay open in them.

`Shape` gives numbers (`Ints`), and so does what is computed from them; where a tensor is needed
they become one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LONGEST = 256
"""Elements of a constant that may be taken as numbers."""


BITS = 64
"""Bits of a whole number: a size is in 64."""


class Ints(list[Any]):
    """A vector of numbers."""


Number = int | float
Host = Number | Ints
"""A number or a vector of them."""


def is_host(value: Any) -> bool:
    """Whether a value is numbers, no tensor."""
    return isinstance(value, int | float | Ints)


def host_of(constant: Tensor) -> Host | None:
    """A small constant as numbers."""
    if constant.dim() > 1 or constant.numel() > LONGEST:
        return None
    if constant.dtype.itemsize == 1 and constant.is_floating_point():
        return None
    found = constant.tolist()
    return Ints(found) if isinstance(found, list) else found


def elementwise(function: Callable[..., Any], *operands: Host) -> Host:
    """A function of numbers, for each element of vectors that broadcast."""
    vectors = [o for o in operands if isinstance(o, Ints)]
    if not vectors:
        made: Host = _held(function, *operands)
        return made
    length = max(len(v) for v in vectors)
    rows = [_stretched(o, length) for o in operands]
    return Ints(_held(function, *row) for row in zip(*rows, strict=True))


def _held(function: Callable[..., Any], *numbers: Any) -> Any:
    """Return a function of numbers; raise ValueError if the result, or a power, leaves 64 bits."""
    if function is pow and all(type(n) is int for n in numbers):
        base, exponent = numbers
        if exponent * max(base.bit_length(), 1) > BITS:
            raise ValueError(f"{base} to the power of {exponent}: more than {BITS} bits")
    made = function(*numbers)
    if type(made) is int and made.bit_length() > BITS:
        raise ValueError(f"a whole number of {made.bit_length()} bits. Allowed: {BITS}")
    return made


def _stretched(operand: Host, length: int) -> list[Any]:
    if not isinstance(operand, Ints):
        return [operand] * length
    return list(operand) * length if len(operand) == 1 and length != 1 else list(operand)


def as_tensor(value: Any) -> Tensor:
    """Numbers as the tensor they stand for: int64, float32 or bool."""
    if isinstance(value, Tensor):
        return value
    first = next(iter(value), 0) if isinstance(value, Ints) else value
    if isinstance(first, bool):
        kind = torch.bool
    else:
        kind = torch.float32 if isinstance(first, float) else torch.int64
    return torch.tensor(list(value) if isinstance(value, Ints) else value, dtype=kind)
