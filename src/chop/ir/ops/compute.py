"""How a quantisable op computes, given operands that are quantised already.

To make an op quantisable, give its row `compute=computes(...)`: the arguments of its function with
the operands starred, the function, and for a layer with parameters its kernel
`(module, parameters, *arguments) -> result`. A layer without parameters needs no kernel: its own
forward computes on quantised inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    """A tensor that an op computes with.

    `position` and `argument` say where the call has it; `role` names its format in a config
    (`data_in`, `weight` …). `prefer` is a role whose settings win where a config has them.
    """

    position: int
    argument: str
    role: str
    prefer: str | None = None


@dataclass(frozen=True)
class Compute:
    """The arithmetic of one op: its operands, its function and its layer's kernel.

    `unlike`: functions of the op's row that take their arguments otherwise. `integer`: how it
    computes where its config says `arithmetic = "integer"`; None where that is the same.
    """

    arguments: tuple[str, ...]
    operands: tuple[Operand, ...]
    function: Callable[..., Any] | None
    kernel: Kernel | None
    parameters: tuple[str, ...]
    unlike: tuple[Callable[..., Any], ...]
    integer: IntegerKernel | None = None

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that a layer is called with."""
        return tuple(o for o in self.operands if o.argument not in self.parameters)

    @property
    def layer_roles(self) -> tuple[str, ...]:
        """The roles of a layer's inputs and parameters, each once."""
        roles = [o.role for o in self.inputs] + [parameter_role(p) for p in self.parameters]
        return tuple(dict.fromkeys(roles))


def parameter_role(name: str) -> str:
    """The role of a layer's parameter: `in_proj_bias` -> `bias`, `out_proj.weight` -> `weight`."""
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
) -> Compute:
    """The column; in `arguments`, operands end in a star and parameters go by their own name."""
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
    return Compute(names, operands, function, kernel, listed, unlike, integer)
