"""Computation of a quantisable op on quantised operands.

To make an op quantisable, add `compute=computes(...)` to its row: the arguments of its function
with starred operands, the function, and for a layer with parameters its kernel
`(module, parameters, *arguments) -> result`. A layer without parameters needs no kernel, because
its forward computes on quantised inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chop.errors import RegistryError
from chop.ir.ops.integer_kernels import IntegerKernel
from chop.registry import suggest

PARAMETER_NAMES = ("weight", "bias")
"""Arguments of functions that are parameters of their layers."""
Kernel = Callable[..., Any]
Parameters = Any  # a tuple of Tensor | None; torch's signatures cannot be checked against it


@dataclass(frozen=True)
class Operand:
    """Tensor operand of an op.

    `position` and `argument` are its place in the call; `role` names its format in a config
    (`data_in`, `weight` …). `prefer` is a role whose settings have precedence.
    """

    position: int
    argument: str
    role: str
    prefer: str | None = None


@dataclass(frozen=True)
class Compute:
    """Arithmetic of an op: its operands, its function and its layer's kernel.

    `unlike`: functions of the op's row with other arguments. `integer`: its kernel for the setting
    `arithmetic = "integer"`; None if that is the same. `own_names` returns the parameters of a
    layer, if they depend on its settings: an LSTM has four for each layer and direction.
    """

    arguments: tuple[str, ...]
    operands: tuple[Operand, ...]
    function: Callable[..., Any] | None
    kernel: Kernel | None
    parameters: tuple[str, ...]
    unlike: tuple[Callable[..., Any], ...]
    integer: IntegerKernel | None = None
    own_names: Callable[[Any], tuple[str, ...]] | None = None
    inputs: tuple[Operand, ...] = field(init=False, compare=False)
    """Operands that a layer is called with; layers read them at every call."""

    def __post_init__(self) -> None:
        inputs = tuple(o for o in self.operands if o.argument not in self.parameters)
        object.__setattr__(self, "inputs", inputs)

    def names_of(self, layer: Any) -> tuple[str, ...]:
        """Return the names of the parameters of `layer`."""
        return self.parameters if self.own_names is None else self.own_names(layer)

    @property
    def layer_roles(self) -> tuple[str, ...]:
        """Roles of a layer's inputs and parameters, without duplicates."""
        roles = [o.role for o in self.inputs] + [parameter_role(p) for p in self.parameters]
        return tuple(dict.fromkeys(roles))


def parameter_role(name: str) -> str:
    """Return the role of a parameter: `in_proj_bias` -> `bias`, `out_proj.weight` -> `weight`."""
    return "bias" if "bias" in name else "weight"


def computes(
    arguments: str,
    function: Callable[..., Any] | None,
    kernel: Kernel | None = None,
    *,
    parameters: str | None = None,
    prefer: Mapping[str, str] | None = None,
    unlike: tuple[Callable[..., Any], ...] = (),
    integer: IntegerKernel | None = None,
    own_names: Callable[[Any], tuple[str, ...]] | None = None,
) -> Compute:
    """Return the column `compute`; in `arguments`, operands end in a star."""
    names = tuple(name.removesuffix("*") for name in arguments.split())
    starred = [i for i, name in enumerate(arguments.split()) if name.endswith("*")]
    unknown = [name for name in prefer or () if name not in names]
    if unknown:
        raise RegistryError(f"compute: prefer names '{unknown[0]}'. {suggest(unknown[0], names)}")
    own = [names[i] for i in starred if names[i] in PARAMETER_NAMES]
    inputs = [i for i in starred if names[i] not in own]
    roles = {i: "data_in" if len(inputs) == 1 else f"data_in_{n}" for n, i in enumerate(inputs)}
    operands = tuple(
        Operand(i, names[i], roles.get(i, names[i]), (prefer or {}).get(names[i])) for i in starred
    )
    listed = tuple(own if parameters is None else parameters.split())
    return Compute(names, operands, function, kernel, listed, unlike, integer, own_names)
