"""The ways one node may be split along one axis of a mesh.

A strategy says in which layout the node reads each operand and in which its result is born, when
every device runs the node's op on what it holds. To add a rule, write a generator under
`@_rule("name")` and give ops that name in `chop.ir.sharding`. A rule may yield splits that do not
come out even: those are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class Call:
    """One node as the rules see it: its rule, the shapes of tensors, and its other arguments."""

    rule: str | None
    operands: Mapping[str, Shape]
    results: tuple[Shape, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    permutation: tuple[int, ...] | None = None
    """For a node that reorders dimensions: where each of the result comes from."""

    @property
    def result(self) -> Shape:
        """The shape of the first result."""
        return self.results[0]

    def dims(self, name: str = "dim") -> set[int] | None:
        """The dimensions of the first operand that argument `name` picks; None where unclear."""
        given = self.config.get(name)
        rank = len(self.operands["data_in_0"])
        listed: list[Any] = list(given) if isinstance(given, tuple | list) else [given]
        if not listed or not all(type(d) is int for d in listed):
            return None
        return {d % rank for d in listed}


WHOLE = Strategy("replicate")
"""Every device runs the whole node: right for any op."""

Rule = Callable[[Call], Iterator[Strategy]]
RULES: dict[str, Rule] = {}


def _rule(name: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES[name] = rule
        return rule

    return register


def strategies(call: Call, devices: int) -> list[Strategy]:
    """Every way to run `call` on `devices`, `WHOLE` first; splits are even and none is empty."""
    rule = RULES.get(call.rule or "")
    if rule is None or devices == 1 or not call.results or not call.operands:
        return [WHOLE]
    return [WHOLE, *(s for s in rule(call) if _is_even(s, call, devices))]


def _is_even(strategy: Strategy, call: Call, devices: int) -> bool:
    split = [(strategy.result, shape) for shape in call.results]
    split += [(layout, call.operands[name]) for name, layout in strategy.operands.items()]
    dims = [(sharded_dim(layout), shape) for layout, shape in split]
    even = all(d is None or (shape[d] and shape[d] % devices == 0) for d, shape in dims)
    return even and any(layout != REPLICATE for layout in strategy.operands.values())


def _aligned(shape: Shape, result: Shape, dim: int) -> Layout:
    """The layout of a broadcast operand where the result is split along `dim`."""
    own = dim - (len(result) - len(shape))
    return REPLICATE if own < 0 or shape[own] == 1 else shard(own)


def _along(call: Call, dims: Sequence[int] | range) -> Iterator[Strategy]:
    """Splits along each of `dims` of the result, every operand alike."""
    for dim in dims:
        operands = {n: _aligned(s, call.result, dim) for n, s in call.operands.items()}
        yield Strategy(f"split {dim}", operands, shard(dim))


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape `shapes` broadcast to; None where they do not."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    sizes = [{n for n in column if n != 1} or {1} for column in zip(*padded, strict=True)]
    return tuple(s.pop() for s in sizes) if all(len(s) == 1 for s in sizes) else None


@_rule("elementwise")
def _elementwise(call: Call) -> Iterator[Strategy]:
    if len(call.results) == 1 and _broadcast(list(call.operands.values())) == call.result:
        yield from _along(call, range(len(call.result)))


@_rule("along_dimension")
def _along_dimension(call: Call) -> Iterator[Strategy]:
    whole = call.dims()
    if whole is not None and len(call.operands) == 1:
        yield from _along(call, [d for d in range(len(call.result)) if d not in whole])


@_rule("norm_last")
def _norm_last(call: Call) -> Iterator[Strategy]:
    shape = call.config.get("normalized_shape")
    if isinstance(shape, tuple | list):
        yield from _rows(call, len(call.result) - len(shape))


def _rows(call: Call, leading: int) -> Iterator[Strategy]:
    """Splits along the first dimensions, with parameters whole."""
    for dim in range(leading):
        yield Strategy(f"split {dim}", {"data_in_0": shard(dim)}, shard(dim))


@_rule("linear")
def _linear(call: Call) -> Iterator[Strategy]:
    last = len(call.result) - 1
    if len(call.operands.get("weight", ())) != 2:
        return
    yield from _rows(call, last)
    yield _known(call, "column", shard(last), weight=shard(0), bias=shard(0))
    yield _known(
        call, "row", PARTIAL, data_in_0=shard(last), weight=shard(1), bias=PARTIAL
    )  # the bias is added once over all devices


def _known(call: Call, name: str, result: Layout, **operands: Layout) -> Strategy:
    """A strategy without the operands this call does not have."""
    return Strategy(name, {n: v for n, v in operands.items() if n in call.operands}, result)


@_rule("addmm")
def _addmm(call: Call) -> Iterator[Strategy]:
    ranks = [len(call.operands.get(f"data_in_{i}", ())) for i in range(3)]
    if ranks != [1, 2, 2]:
        return
    yield _known(call, "split 0", shard(0), data_in_1=shard(0))
    yield _known(call, "column", shard(1), data_in_0=shard(0), data_in_2=shard(1))
    yield _known(call, "row", PARTIAL, data_in_0=PARTIAL, data_in_1=shard(1), data_in_2=shard(0))


@_rule("conv")
def _conv(call: Call) -> Iterator[Strategy]:
    weight, x = call.operands.get("weight", ()), call.operands["data_in_0"]
    if len(x) != len(weight):  # no batch dimension
        return
    yield from _rows(call, 1)
    if x[1] == weight[1]:  # one group
        yield _known(call, "column", shard(1), weight=shard(0), bias=shard(0))
        yield _known(call, "row", PARTIAL, data_in_0=shard(1), weight=shard(1), bias=PARTIAL)


@_rule("embedding")
def _embedding(call: Call) -> Iterator[Strategy]:
    last = len(call.result) - 1
    if any(call.config.get(name) for name in ("max_norm", "sparse", "scale_grad_by_freq")):
        return  # these look at the whole table, or at all ids at once
    yield from _rows(call, last)
    yield Strategy("hidden", {"weight": shard(1)}, shard(last))
    yield Strategy("vocabulary", {"weight": shard(0)}, PARTIAL)


@_rule("matmul")
def _matmul(call: Call) -> Iterator[Strategy]:
    a, b = call.operands["data_in_0"], call.operands.get("data_in_1", ())
    if len(a) < 2 or len(b) < 2:
        return
    rows, last = len(call.result) - 2, len(call.result) - 1
    yield from _along(call, range(rows))
    yield Strategy(f"split {rows}", {"data_in_0": shard(len(a) - 2)}, shard(rows))
    yield Strategy(f"split {last}", {"data_in_1": shard(len(b) - 1)}, shard(last))
    inner = {"data_in_0": shard(len(a) - 1), "data_in_1": shard(len(b) - 2)}
    yield Strategy("inner", inner, PARTIAL)


@_rule("attention")
def _attention(call: Call) -> Iterator[Strategy]:
    ranks = {len(call.operands.get(f"data_in_{i}", ())) for i in range(3)}
    if ranks == {len(call.result)}:
        yield from _along(call, range(len(call.result) - 2))


@_rule("reshape")
def _reshape(call: Call) -> Iterator[Strategy]:
    """The outermost dimension of a group of dimensions stays outermost, so a split of it stays."""
    for before, after in carried_dims(call.operands["data_in_0"], call.result):
        yield Strategy(f"split {after}", {"data_in_0": shard(before)}, shard(after))


def carried_dims(before: Shape, after: Shape) -> list[tuple[int, int]]:
    """Pairs of dimensions a split is carried between when elements keep their order.

    >>> carried_dims((2, 5, 12), (2, 5, 4, 3))
    [(0, 0), (1, 1), (2, 2)]
    >>> carried_dims((2, 5, 4, 3), (10, 12))
    [(0, 0), (2, 1)]
    """
    if math.prod(before) != math.prod(after) or 0 in before:
        return []
    old, new = _offsets(before), _offsets(after)
    return [(old[inside], new[inside]) for inside in sorted(old, reverse=True) if inside in new]


def _offsets(shape: Shape) -> dict[int, int]:
    """Elements from a dimension inwards -> the dimension, for those that hold more than one."""
    return {math.prod(shape[d:]): d for d, size in enumerate(shape) if size > 1}


@_rule("permute")
def _permute(call: Call) -> Iterator[Strategy]:
    for after, before in enumerate(call.permutation or ()):
        yield Strategy(f"split {after}", {"data_in_0": shard(before)}, shard(after))


@_rule("expand")
def _expand(call: Call) -> Iterator[Strategy]:
    shape = call.operands["data_in_0"]
    first = len(call.result) - len(shape)
    if len(call.operands) == len(call.results) == 1:
        kept = [d for d, size in enumerate(shape) if size == call.result[first + d]]
        for d in kept:
            yield Strategy(f"split {first + d}", {"data_in_0": shard(d)}, shard(first + d))


@_rule("getitem")
def _getitem(call: Call) -> Iterator[Strategy]:
    x, index = call.operands["data_in_0"], call.config.get("index")
    if type(index) is int and (len(call.operands) > 1 or call.result == x):  # one of some results
        yield from _rows(call, len(call.result))
    elif len(call.operands) == 1:
        for before, after in _untouched_dims(index, len(x)):
            yield Strategy(f"split {after}", {"data_in_0": shard(before)}, shard(after))


def _untouched_dims(index: Any, rank: int) -> list[tuple[int, int]]:
    """Pairs of dimensions that `x[index]` takes whole; none for an index we do not know.

    >>> _untouched_dims((slice(None), 0), 3)
    [(0, 0), (2, 1)]
    """
    parts = list(index) if isinstance(index, tuple | list) else [index]
    if isinstance(index, list) or not all(_is_simple(p) for p in parts):
        return []
    taken = sum(p is not None and p is not Ellipsis for p in parts)
    rest = [slice(None)] * (rank - taken)
    where = next((i for i, p in enumerate(parts) if p is Ellipsis), None)
    parts = [*parts, *rest] if where is None else [*parts[:where], *rest, *parts[where + 1 :]]
    pairs, before, after = [], 0, 0
    for part in parts:
        if part == slice(None):
            pairs.append((before, after))
        before += part is not None
        after += part is None or isinstance(part, slice)
    return pairs


def _is_simple(part: Any) -> bool:
    return part is None or part is Ellipsis or type(part) is int or isinstance(part, slice)


@_rule("cat")
def _cat(call: Call) -> Iterator[Strategy]:
    whole = _dims_or(call, 0)
    if len({len(s) for s in call.operands.values()}) == 1:
        yield from _same_dim(call, whole)


@_rule("split")
def _split(call: Call) -> Iterator[Strategy]:
    yield from _same_dim(call, _dims_or(call, 0))


def _dims_or(call: Call, default: int) -> set[int] | None:
    return call.dims() if call.config.get("dim") is not None else {default}


def _same_dim(call: Call, whole: set[int] | None) -> Iterator[Strategy]:
    """Splits along every dimension of the result but `whole`; operands and results alike."""
    if whole is None:
        return
    for dim in range(len(call.result)):
        if dim not in whole:
            yield Strategy(f"split {dim}", {n: shard(dim) for n in call.operands}, shard(dim))


@_rule("reduce")
def _reduce(call: Call) -> Iterator[Strategy]:
    gone, rank = call.dims(), len(call.operands["data_in_0"])
    if gone is None or len(call.operands) != 1:
        return
    keeps = len(call.result) == rank
    after = 0
    for before in range(rank):
        if before not in gone:
            yield Strategy(f"split {after}", {"data_in_0": shard(before)}, shard(after))
        after += keeps or before not in gone


@_rule("parameter")
def _parameter(call: Call) -> Iterator[Strategy]:
    """A node that only names a parameter."""
    yield from _same_dim(call, set())
