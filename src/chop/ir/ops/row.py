"""Row of the op table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from chop.errors import RegistryError
from chop.ir.dims import check_rule
from chop.ir.ops.compute import PARAMETER_NAMES, Compute
from chop.registry import suggest

MODULE = "module"
MODULE_RELATED_FUNC = "module_related_func"
BUILTIN_FUNC = "builtin_func"
IMPLICIT_FUNC = "implicit_func"
PLACEHOLDER = "placeholder"
GET_ATTR = "get_attr"
OUTPUT = "output"
MASE_TYPES = (
    *(MODULE, MODULE_RELATED_FUNC, BUILTIN_FUNC, IMPLICIT_FUNC),
    *(PLACEHOLDER, GET_ATTR, OUTPUT),
)
"""The seven types of the IR."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Shapes:
    """Shapes of a call, for the cost rule of its op."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    parameters: Mapping[str, Shape] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def output_elements(self) -> int:
        """Elements of all outputs."""
        return sum(math.prod(s) for s in self.outputs)


ModuleClass = type[nn.Module]
MacsRule = Callable[[Shapes], int]


@dataclass(frozen=True)
class Op:
    """Operator: its names in torch, its operands, cost and side effects.

    `is_random`: calls on equal operands may differ. `is_stateful`: a call in training mode writes
    buffers. `is_view`: the result may share the storage of an operand. `is_dropout`: returns its
    operand in evaluation mode. `copies_if_strided`: a view only of a contiguous operand.
    `reads_rows`: reads only the rows of its parameters that it returns. `compute`: its arithmetic
    on quantised operands; None if it cannot be quantised. `dims`: its dimension rule
    (`chop.ir.dims`); None if every dimension is needed whole. `carries_factor`: positions of
    operands of which a positive factor, also one per channel, is a factor of the result.
    `rtl`: its component of `chop.hw`, or wiring; empty if hardware does not support it.
    """

    name: str
    type: str
    modules: tuple[ModuleClass, ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    methods: tuple[str, ...] = ()
    module_names: tuple[str, ...] = ()
    """Endings of class names, for layers that libraries copy instead of importing."""
    parameters: tuple[str, ...] = ()
    macs: MacsRule | None = None
    flops_per_output: float = 0.0
    is_random: bool = False
    is_stateful: bool = False
    is_view: bool = False
    is_dropout: bool = False
    copies_if_strided: bool = False
    reads_rows: bool = False
    compute: Compute | None = None
    dims: str | None = None
    carries_factor: tuple[int, ...] = ()
    rtl: str = ""

    def __post_init__(self) -> None:
        if self.type not in MASE_TYPES:
            nearest = suggest(self.type, MASE_TYPES)
            raise RegistryError(f"op '{self.name}': unknown type '{self.type}'. {nearest}")
        check_rule(self.dims, f"op '{self.name}'")
        own = [o.argument for o in self.compute.operands] if self.compute else []
        unknown = [n for n in own if n in PARAMETER_NAMES and n not in self.parameters]
        if unknown:
            raise RegistryError(
                f"op '{self.name}': computes with '{unknown[0]}', which is none of its "
                f"parameters. Known: {', '.join(self.parameters) or 'none'}."
            )

    def flops(self, shapes: Shapes) -> int:
        """Return floating-point operations: two per multiply-accumulate, plus elementwise ones."""
        return 2 * self.macs_of(shapes) + int(self.flops_per_output * shapes.output_elements)

    def macs_of(self, shapes: Shapes) -> int:
        """Return the multiply-accumulates of one call."""
        return self.macs(shapes) if self.macs else 0


UNKNOWN = Op("unknown", IMPLICIT_FUNC)
"""Row of a node whose op is in no table."""
