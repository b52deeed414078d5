"""Split of a layer that is derived from a plain one: quantised, packed, pruned or adapted.

A derived layer computes what the plain layer of its op computes, on other tensors and between
number formats. It can be split over devices wherever the plain layer can, if its tensors follow and
every format rounds the parts as it rounds the whole. A parameter whose format measures the whole
tensor is rounded whole on every device and cut afterwards. A layer declares its split by a method
`split_rule()`, which returns a `SplitRule`; a layer without one runs whole. If calls on parts need
other settings, `for_parts(parts, cuts)` returns the layer with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import nn
from torch.nn.utils import parametrize

from chop.ir.dims import ShapedCall
from chop.ir.ops import OPS, Op, op_of_module
from chop.ir.reclass import mask_name
from chop.nn.quantizers import Quantizer

DATA_OUT = "data_out"
"""Name of the result among the operands of a rule."""
WEIGHT, BIAS = "weight", "bias"


@dataclass(frozen=True)
class FollowingTensor:
    """Parameter or buffer of a layer that is split with an operand of the plain layer.

    `dims`: dimension of the operand -> dimension of this tensor; a negative one counts from the
    end. If another dimension of the operand is split, every device needs the whole tensor.
    """

    operand: str
    dims: Mapping[int, int] = field(default_factory=dict)
    is_operand: bool = False
    """True if it is the operand itself."""

    def dim_for(self, dim: int, rank: int) -> int | None:
        """Return the dimension that is split with dimension `dim` of the operand, or None."""
        return self.dims.get(dim, self.dims.get(dim - rank))


class ParameterCut(NamedTuple):
    """Part of a rounded parameter: `length` indices of dimension `dim` from `start`."""

    dim: int
    start: int
    length: int


ParameterCuts = Mapping[str, tuple[ParameterCut, ...]]
"""Cuts of rounded parameters by name, at most one per dimension."""


@dataclass(frozen=True)
class SplitRule:
    """Split of a layer like the plain layer of `op`.

    `tensors`: parameters and buffers of the layer by name. `formats`: formats that round operands
    of the plain layer at each call. `units`: operand -> dimension -> unit of its parts, for what is
    stored in groups. `only`: operand -> the only dimensions of it that can be split.
    """

    op: str
    tensors: Mapping[str, FollowingTensor]
    formats: Mapping[str, Quantizer] = field(default_factory=dict)
    units: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    only: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def plain_op(self) -> Op:
        """Op of the plain layer."""
        return OPS[self.op]

    def unit(self, operand: str, rank: int, dim: int) -> int | None:
        """Return the unit of parts of an operand along `dim`; None if it must be whole."""
        only = self.only.get(operand)
        if only is not None and not {dim, dim - rank} & set(only):
            return None
        form = self.formats.get(operand)
        unit = 1 if form is None else form.part_unit(rank, dim)
        return None if unit is None else unit * self.units.get(operand, {}).get(dim, 1)

    def rounded_parameters(self) -> set[str]:
        """Return the operands that are parameters and rounded at each call."""
        parameters = {t.operand for t in self.tensors.values() if t.is_operand}
        return {operand for operand in self.formats if operand in parameters}

    def plain_call(self, call: ShapedCall) -> ShapedCall:
        """Return the call of the plain layer that a call of this layer stands for."""
        operands = {n: s for n, s in call.operands.items() if n.startswith("data_in_")}
        for name, tensor in self.tensors.items():
            if tensor.is_operand:
                operands[tensor.operand] = call.operands[name]
        if WEIGHT not in operands and any(t.operand == WEIGHT for t in self.tensors.values()):
            operands[WEIGHT] = (call.result[-1], call.first[-1])  # a packed linear layer
        return replace(call, rule=self.plain_op.dims, operands=operands)


def split_rule_of(module: nn.Module) -> SplitRule | None:
    """Return the rule of a layer; None if it must run whole.

    A layer with hooks or parametrisations does more than its class says.
    """
    if has_hooks(module) or parametrize.is_parametrized(module):
        return None
    own = getattr(module, "split_rule", None)
    if own is not None:
        rule: SplitRule | None = own()
        return rule
    op = op_of_module(module)
    return plain_split_rule(module) if op is not None and type(module) in op.modules else None


def has_hooks(module: nn.Module) -> bool:
    """Return True if the module has forward hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def plain_split_rule(module: nn.Module) -> SplitRule | None:
    """Return the rule of a layer whose parameters are the operands, with masks of pruned ones."""
    op = op_of_module(module)
    if op is None or op.dims is None:
        return None
    tensors: dict[str, FollowingTensor] = {}
    for name in op.parameters:
        parameter = module._parameters.get(name)
        if parameter is not None:
            dims = {dim: dim for dim in range(parameter.dim())}
            tensors[name] = FollowingTensor(name, dims, is_operand=True)
            if mask_name(name) in module._buffers:
                tensors[mask_name(name)] = FollowingTensor(name, dims)
    return SplitRule(op.name, tensors)
