"""Strategies to split one node along one mesh axis.

A strategy has the layout of each operand and of the result, if every device runs the node's op on
its local parts. Strategies follow from the dimension rule of the op (`chop.ir.dims`): a dimension
that the op carries by parts can be split, and one that it sums over yields partial sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chop.distributed.layouts import (
    PARTIAL,
    REPLICATE,
    Layout,
    Shape,
    Use,
    shard,
    sharded_dim,
    use_of,
)
from chop.ir.dims import Carried, ShapedCall, carried
from chop.ir.split_rule import DATA_OUT, FollowingTensor, SplitRule


@dataclass(frozen=True)
class Strategy:
    """Layouts of the operands of a node (replicated if missing) and of its result.

    `state`: layout of the gradient and of the optimizer state of a parameter, if it differs from
    that of the parameter. `is_freed`: a parameter that is gathered for forward is freed after it
    and gathered again for backward. `cuts`: dimension of each parameter of a derived layer that is
    rounded whole and cut afterwards.
    """

    name: str
    operands: Mapping[str, Layout] = field(default_factory=dict)
    result: Layout = REPLICATE
    state: Layout | None = None
    is_freed: bool = False
    cuts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_split(self) -> bool:
        """True if the devices share the work."""
        return self.result != REPLICATE or any(v != REPLICATE for v in self.operands.values())

    def record(self) -> dict[str, Any]:
        """Return the strategy as plain data; `state`, `is_freed` and `cuts` only if set."""
        data: dict[str, Any] = {
            "name": self.name,
            "operands": dict(self.operands),
            "result": self.result,
        }
        if self.state is not None:
            data["state"] = self.state
        if self.cuts:
            data["cuts"] = dict(self.cuts)
        return data | ({"is_freed": True} if self.is_freed else {})

    def use(self, operand: str) -> Use:
        """Return the use of `operand` by the node."""
        return use_of(self.operands.get(operand, REPLICATE), self.is_split)


WHOLE = Strategy("replicate")
"""Strategy in which every device runs the whole node: valid for any op."""


def strategies(call: ShapedCall, devices: int) -> list[Strategy]:
    """Return the strategies of `call` on `devices`, `WHOLE` first; all splits are even."""
    if devices == 1:
        return [WHOLE]
    splits = [_split_along(line, call) for line in carried(call) if line.by_parts]
    return [WHOLE, *(s for s in splits if _is_even(s, call, devices))]


def derived_strategies(call: ShapedCall, rule: SplitRule, devices: int) -> list[Strategy]:
    """Return the strategies of a derived layer: those of the plain layer that `rule` permits."""
    plain = rule.plain_call(call)
    derived = [_derived(s, plain, rule, devices) for s in strategies(plain, devices)[1:]]
    return [WHOLE, *(s for s in derived if s is not None and _is_even(s, call, devices))]


def _derived(
    strategy: Strategy, plain: ShapedCall, rule: SplitRule, devices: int
) -> Strategy | None:
    """Return the strategy of the derived layer like `strategy` of the plain one; None if none is.

    Only the plain layer knows how to look up a part of a table. A sum over devices cannot be
    rounded before it is complete. A parameter that cannot be rounded in parts is read whole.
    """
    is_sum = strategy.result == PARTIAL
    if is_sum and (rule.plain_op.reads_rows or DATA_OUT in rule.formats):
        return None
    layouts = {**strategy.operands, DATA_OUT: strategy.result}
    shapes = {**plain.operands, DATA_OUT: plain.result}
    uneven = [n for n in layouts if not _is_at_units(layouts[n], shapes[n], n, rule, devices)]
    if not set(uneven) <= rule.rounded_parameters():
        return None
    operands = {n: layout for n, layout in strategy.operands.items() if n.startswith("data_in_")}
    cuts = {}
    for name, tensor in rule.tensors.items():
        is_cut = tensor.operand in uneven
        followed = REPLICATE if is_cut else layouts.get(tensor.operand, REPLICATE)
        operands[name] = _following(tensor, followed, shapes, rule)
        if is_cut and tensor.is_operand:
            cuts[name] = sharded_dim(layouts[tensor.operand]) or 0
    return Strategy(strategy.name, operands, strategy.result, cuts=cuts)


def _is_at_units(layout: Layout, shape: Shape, name: str, rule: SplitRule, devices: int) -> bool:
    """Return True if the parts of an operand start at the units of its format."""
    dim = sharded_dim(layout)
    if dim is None:
        return True
    unit = rule.unit(name, len(shape), dim)
    return unit is not None and shape[dim] % (devices * unit) == 0


def _following(
    tensor: FollowingTensor, layout: Layout, shapes: Mapping[str, Shape], rule: SplitRule
) -> Layout:
    """Return the layout of a tensor that follows an operand in `layout`.

    The operand that is added once, on one device, is whole if it is rounded: zeros on the other
    devices may round to another number.
    """
    dim = sharded_dim(layout)
    if dim is not None:
        own = tensor.dim_for(dim, len(shapes[tensor.operand]))
        return REPLICATE if own is None else shard(own)
    is_added = layout == PARTIAL and tensor.is_operand and tensor.operand not in rule.formats
    return PARTIAL if is_added else REPLICATE


def _split_along(line: Carried, call: ShapedCall) -> Strategy:
    layouts = {n: REPLICATE if d is None else shard(d) for n, d in line.operands.items()}
    layouts |= dict.fromkeys(line.added_once, PARTIAL)  # a bias of a sum: added on one device
    operands = {n: layouts[n] for n in call.operands if n in layouts}
    return Strategy(line.name, operands, PARTIAL if line.result is None else shard(line.result))


def _is_even(strategy: Strategy, call: ShapedCall, devices: int) -> bool:
    split = [(strategy.result, shape) for shape in call.results]
    split += [(layout, call.operands[name]) for name, layout in strategy.operands.items()]
    dims = [(sharded_dim(layout), shape) for layout, shape in split]
    even = all(d is None or (shape[d] and shape[d] % devices == 0) for d, shape in dims)
    is_split = any(layout != REPLICATE for layout in strategy.operands.values())
    return even and (is_split or bool(strategy.cuts))
