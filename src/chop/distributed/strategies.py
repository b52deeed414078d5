"""The ways one node may be split along one axis of a mesh.

A strategy says in which layout the node reads each operand and in which its result is born, when
every device runs the node's op on what it holds. They are read from how the op carries dimensions
(`chop.ir.dims`): one that it carries by parts may be split, and one that it sums over gives a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chop.distributed.layouts import PARTIAL, REPLICATE, Layout, Use, shard, sharded_dim, use_of
from chop.ir.dims import Carried, ShapedCall, carried


@dataclass(frozen=True)
class Strategy:
    """One way to run a node: layouts of operands (those left out are replicated) and result."""

    name: str
    operands: Mapping[str, Layout] = field(default_factory=dict)
    result: Layout = REPLICATE

    @property
    def is_split(self) -> bool:
        """Whether the devices share the work."""
        return self.result != REPLICATE or any(v != REPLICATE for v in self.operands.values())

    def record(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "operands": dict(self.operands), "result": self.result}

    def use(self, operand: str) -> Use:
        """How the node reads `operand`."""
        return use_of(self.operands.get(operand, REPLICATE), self.is_split)


WHOLE = Strategy("replicate")
"""Every device runs the whole node: right for any op."""


def strategies(call: ShapedCall, devices: int) -> list[Strategy]:
    """Every way to run `call` on `devices`, `WHOLE` first; splits are even and none is empty."""
    if devices == 1:
        return [WHOLE]
    found = [_split_along(line, call) for line in carried(call) if line.by_parts]
    return [WHOLE, *(s for s in found if _is_even(s, call, devices))]


def _split_along(line: Carried, call: ShapedCall) -> Strategy:
    """What is added to a sum is added once over all devices."""
    layouts = {n: REPLICATE if d is None else shard(d) for n, d in line.operands.items()}
    layouts |= dict.fromkeys(line.added_once, PARTIAL)
    operands = {n: layouts[n] for n in call.operands if n in layouts}
    return Strategy(line.name, operands, PARTIAL if line.result is None else shard(line.result))


def _is_even(strategy: Strategy, call: ShapedCall, devices: int) -> bool:
    split = [(strategy.result, shape) for shape in call.results]
    split += [(layout, call.operands[name]) for name, layout in strategy.operands.items()]
    dims = [(sharded_dim(layout), shape) for layout, shape in split]
    even = all(d is None or (shape[d] and shape[d] % devices == 0) for d, shape in dims)
    return even and any(layout != REPLICATE for layout in strategy.operands.values())
