"""Strategies to split one node along one mesh axis.

A strategy has the layout of each operand and of the result, if every device runs the node's op on
its local parts. Strategies follow from the dimension rule of the op (`chop.ir.dims`): a dimension
that the op carries by parts can be split, and one that it sums over yields partial sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chop.distributed.layouts import PARTIAL, REPLICATE, Layout, Use, shard, sharded_dim, use_of
from chop.ir.dims import Carried, ShapedCall, carried


@dataclass(frozen=True)
class Strategy:
    """Layouts of the operands of a node (replicated if missing) and of its result.

    `state`: layout of the gradient and of the optimizer state of a parameter, if it differs from
    that of the parameter. `is_freed`: a parameter that is gathered for forward is freed after it
    and gathered again for backward.
    """

    name: str
    operands: Mapping[str, Layout] = field(default_factory=dict)
    result: Layout = REPLICATE
    state: Layout | None = None
    is_freed: bool = False

    @property
    def is_split(self) -> bool:
        """True if the devices share the work."""
        return self.result != REPLICATE or any(v != REPLICATE for v in self.operands.values())

    def record(self) -> dict[str, Any]:
        """Return the strategy as plain data; `state` and `is_freed` only if they are set."""
        data: dict[str, Any] = {
            "name": self.name,
            "operands": dict(self.operands),
            "result": self.result,
        }
        if self.state is not None:
            data["state"] = self.state
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
    return even and any(layout != REPLICATE for layout in strategy.operands.values())
