"""A row of the op table: what MASE knows about one operator."""

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
    MODULE,
    MODULE_RELATED_FUNC,
    BUILTIN_FUNC,
    IMPLICIT_FUNC,
    PLACEHOLDER,
    GET_ATTR,
    OUTPUT,
)
"""The seven types of the IR."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Shapes:
    """The shapes an op works on, as its cost rule sees them."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    parameters: Mapping[str, Shape] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def output_elements(self) -> int:
        """Elements over all outputs."""
        return sum(math.prod(s) for s in self.outputs)


ModuleClass = type[nn.Module]
MacsRule = Callable[[Shapes], int]


@dataclass(frozen=True)
class Op:
    """One operator: its names in torch, its operands, what it costs, what it may do besides.

    `is_random`: two calls on equal operands may differ. `is_stateful`: a call in training mode
    writes buffers. `is_view`: the result may share the storage of an operand. `is_dropout`: gives
    its operand back in evaluation mode. `copies_if_strided`: a view, but of a contiguous operand
    alone. `reads_rows`: of its parameters it reads the rows it gives. `compute`: its arithmetic on
    quantised operands; None where it cannot be quantised. `dims`: the rule by which it carries
    dimensions (`chop.ir.dims`); None where every one is needed whole. `carries_factor`: places of
    operands of which a positive factor, also one for each channel, is a factor of the result.
    `rtl`: how hardware realises it, a component of `chop.hw` or wiring; empty where it does not.
    """

    name: str
    type: str
    modules: tuple[ModuleClass, ...] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    methods: tuple[str, ...] = ()
    module_names: tuple[str, ...] = ()
    """Endings of class names, for a layer that every library copies instead of importing."""
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
            known = suggest(self.type, MASE_TYPES)
            raise RegistryError(f"op '{self.name}': unknown type '{self.type}'. {known}")
        check_rule(self.dims, f"op '{self.name}'")
        self._check_parameters()

    def _check_parameters(self) -> None:
        """A parameter that the op computes with by its name is one that the row names."""
        own = [o.argument for o in self.compute.operands] if self.compute else []
        unknown = [n for n in own if n in PARAMETER_NAMES and n not in self.parameters]
        if unknown:
            known = ", ".join(self.parameters) or "none"
            raise RegistryError(
                f"op '{self.name}': computes with '{unknown[0]}', which is none of its "
                f"parameters. Known: {known}."
            )

    def flops(self, shapes: Shapes) -> int:
        """Floating-point operations: two for each multiply-accumulate, plus the elementwise."""
        return 2 * self.macs_of(shapes) + int(self.flops_per_output * shapes.output_elements)

    def macs_of(self, shapes: Shapes) -> int:
        """Multiply-accumulates of one call; 0 where the op has none."""
        return self.macs(shapes) if self.macs else 0


UNKNOWN = Op("unknown", IMPLICIT_FUNC)
"""Of a node whose op is in no table."""
