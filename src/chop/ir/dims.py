"""How each op carries the dimensions of its operands to its result: one rule for all who ask.

The column `dims` of the op table names a rule, `DIMENSION_RULES` has them. A rule looks at the
shapes of a call and gives a `Carried` for every dimension that passes through it index by index.
Structured pruning reads from it which indices are removed together, sharding what may be split
over devices. A dimension of which nothing is said is needed whole by both, which is always right.

To add a rule, write a generator under `@rule("name")`. What pruning does beyond it (an op whose
indices are cut or put together) is in `chop.passes.prune.channel_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import RegistryError
from chop.registry import Registry, suggest

Shape = tuple[int, ...]

LAYER_SETTINGS = (
    "dim",
    "groups",
    "num_groups",
    "normalized_shape",
    "max_norm",
    "sparse",
    "scale_grad_by_freq",
    "batch_first",
)
"""Attributes of a layer that a rule may ask for as if they were arguments of the call."""
FACTS = "facts"
"""The rule of ops that read sizes and types: they carry nothing, and need nothing whole."""


@dataclass(frozen=True)
class ShapedCall:
    """One call as the rules see it: the shapes of its tensors, and its other arguments.

    Operands are `data_in_0` … and the parameters by their names.
    """

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

    @property
    def first(self) -> Shape:
        """The shape of the first operand."""
        return self.operands["data_in_0"]

    def dims(self, *, default: int | None = None) -> set[int] | None:
        """The dimensions of the first operand that the arguments pick; None where unclear."""
        given = next((g for n in _DIM_NAMES if (g := self.config.get(n)) is not None), default)
        listed: list[Any] = list(given) if isinstance(given, tuple | list) else [given]
        if not listed or not all(type(d) is int for d in listed):
            return None
        return {d % len(self.first) for d in listed}


_DIM_NAMES = ("dim", "dims", "axis")


@dataclass(frozen=True)
class Carried:
    """A dimension on its way through a call, index by index.

    `operands`: the operands that have it, and as which of their dimensions; None for one that is
    broadcast along it. `result`: which of the result's it becomes; None where the result is the
    sum over it, to which the operands `added_once` are added without being multiplied.
    `attributes`: of a layer, what repeats its size. `by_parts`: the op itself, on a part of the
    indices, gives that part of the result (or of the sum). `is_removable`: indices can be left
    out; not where they are values elsewhere. `is_made`: the weight of a layer makes it.
    """

    name: str
    operands: Mapping[str, int | None]
    result: int | None
    added_once: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    by_parts: bool = True
    is_removable: bool = True
    is_made: bool = False


Rule = Callable[[ShapedCall], Iterable[Carried]]
DIMENSION_RULES: Registry[Rule] = Registry("dimension rule")


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register a rule of the column `dims` under its name."""
    return lambda function: DIMENSION_RULES.register(name, function)


def check_rule(name: str | None, where: str) -> None:
    """Raise where the column `dims` names no rule."""
    if name is not None and name not in DIMENSION_RULES:
        known = suggest(name, DIMENSION_RULES)
        raise RegistryError(f"{where}: unknown dimension rule '{name}'. {known}")


def carried(call: ShapedCall) -> list[Carried]:
    """What the rule of `call` says; nothing for a call without a rule or without tensors."""
    if call.rule is None or not call.results or not call.operands:
        return []
    return list(DIMENSION_RULES[call.rule](call))


def _known(call: ShapedCall, name: str, result: int | None, **operands: int) -> Carried:
    """A dimension without the operands that this call does not have; a bias is added once."""
    has = {n: d for n, d in operands.items() if n in call.operands}
    added = ("bias",) if result is None and "bias" in call.operands else ()
    return Carried(name, has, result, added_once=added)


def _rows(dims: Iterable[int], **more: Any) -> Iterator[Carried]:
    """Dimensions of the first operand that stay where they are, with all others whole."""
    for dim in dims:
        yield Carried(f"split {dim}", {"data_in_0": dim}, dim, **more)


def _aligned(call: ShapedCall, dims: Iterable[int]) -> Iterator[Carried]:
    """Dimensions of the result that every operand has at the same place, or is broadcast along."""
    for dim in dims:
        own = {n: dim - len(call.result) + len(s) for n, s in call.operands.items()}
        operands = {
            n: d if d >= 0 and (call.operands[n][d] != 1 or call.result[dim] == 1) else None
            for n, d in own.items()
        }
        yield Carried(f"split {dim}", operands, dim)


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape `shapes` broadcast to; None where they do not."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    sizes = [{n for n in column if n != 1} or {1} for column in zip(*padded, strict=True)]
    return tuple(s.pop() for s in sizes) if all(len(s) == 1 for s in sizes) else None


@rule("elementwise")
def _elementwise(call: ShapedCall) -> Iterator[Carried]:
    """Result elements come from operand elements at the same (broadcast) place."""
    if len(call.results) == 1 and _broadcast(list(call.operands.values())) == call.result:
        yield from _aligned(call, range(len(call.result)))


@rule("per_sample")
def _per_sample(call: ShapedCall) -> Iterator[Carried]:
    """As elementwise, but what is done to an element hangs on its sample or channel."""
    for line in _elementwise(call):
        yield line if line.result == 0 else _whole_for_parts(line)


def _whole_for_parts(line: Carried) -> Carried:
    return Carried(line.name, line.operands, line.result, by_parts=False)


@rule("along_dimension")
def _along_dimension(call: ShapedCall) -> Iterator[Carried]:
    """As elementwise, but the elements along some dimensions need each other."""
    whole = call.dims()
    if whole is not None and len(call.operands) == 1 and call.results == (call.first,):
        yield from _aligned(call, [d for d in range(len(call.result)) if d not in whole])


@rule("linear")
def _linear(call: ShapedCall) -> Iterator[Carried]:
    """weight: (out, in); bias: (out)."""
    last = len(call.result) - 1
    if len(call.operands.get("weight", ())) != 2:
        return
    yield from _rows(range(last))
    yield _layer_output(call, "column", last, "out_features", weight=0, bias=0)
    yield _layer_input(call, "in_features", data_in_0=last, weight=1)


def _layer_output(
    call: ShapedCall, name: str, result: int, attribute: str, **operands: int
) -> Carried:
    line = _known(call, name, result, **operands)
    return Carried(line.name, line.operands, result, attributes=(attribute,), is_made=True)


def _layer_input(call: ShapedCall, attribute: str, **operands: int) -> Carried:
    line = _known(call, "row", None, **operands)
    return Carried(line.name, line.operands, None, line.added_once, (attribute,))


@rule("addmm")
def _addmm(call: ShapedCall) -> Iterator[Carried]:
    """A vector added to the product of two matrices."""
    ranks = [len(call.operands.get(f"data_in_{i}", ())) for i in range(3)]
    if ranks != [1, 2, 2]:
        return
    yield Carried("split 0", {"data_in_1": 0}, 0)
    yield Carried("column", {"data_in_0": 0, "data_in_2": 1}, 1)
    yield Carried("row", {"data_in_1": 1, "data_in_2": 0}, None, added_once=("data_in_0",))


@rule("conv")
def _conv(call: ShapedCall) -> Iterator[Carried]:
    """weight: (out, in / groups, places …); every input channel its own group is depthwise."""
    weight, x = call.operands.get("weight", ()), call.first
    channel = len(x) - len(weight) + 1  # 0 without a batch
    if channel not in (0, 1):
        return
    yield from _rows(range(channel))
    if x[channel] == weight[1]:  # one group
        yield _layer_output(call, "column", channel, "out_channels", weight=0, bias=0)
        yield _layer_input(call, "in_channels", data_in_0=channel, weight=1)
    elif weight[:2] == (x[channel], 1):
        line = _known(call, "depthwise", channel, data_in_0=channel, weight=0, bias=0)
        repeats = ("in_channels", "out_channels", "groups")
        yield Carried(line.name, line.operands, channel, attributes=repeats, by_parts=False)


@rule("conv_transpose")
def _conv_transpose(call: ShapedCall) -> Iterator[Carried]:
    """weight: (in, out, places …)."""
    weight, x = call.operands.get("weight", ()), call.first
    channel = len(x) - len(weight) + 1
    if channel not in (0, 1) or call.config.get("groups") not in (None, 1):
        return
    yield from _rows(range(channel))
    yield _layer_output(call, "column", channel, "out_channels", weight=1, bias=0)
    yield _layer_input(call, "in_channels", data_in_0=channel, weight=0)


@rule("norm_last")
def _norm_last(call: ShapedCall) -> Iterator[Carried]:
    """A parameter for each element of the last dimensions, which need each other."""
    shape = call.config.get("normalized_shape")
    if not isinstance(shape, tuple | list):
        return
    leading = len(call.result) - len(shape)
    yield from _rows(range(leading))
    for i in range(len(shape)):
        dim = leading + i
        line = _known(call, f"split {dim}", dim, data_in_0=dim, weight=i, bias=i)
        repeats = ("normalized_shape",)
        yield Carried(line.name, line.operands, dim, attributes=repeats, by_parts=False)


CHANNEL_TENSORS = ("weight", "bias", "running_mean", "running_var")


@rule("norm_channel")
def _norm_channel(call: ShapedCall) -> Iterator[Carried]:
    """Parameters and statistics for each channel; one parameter may serve all of them."""
    if call.results != (call.first,):
        return
    yield from _rows((d for d in range(len(call.first)) if d != 1), by_parts=False)
    if len(call.first) > 1:
        own = {n: 0 for n in CHANNEL_TENSORS if call.operands.get(n, (1,)) != (1,)}
        repeats = ("num_features", "num_parameters") if own else ()
        yield Carried("split 1", {"data_in_0": 1} | own, 1, attributes=repeats, by_parts=False)


@rule("norm_group")
def _norm_group(call: ShapedCall) -> Iterator[Carried]:
    """Channels in groups: one group, or each its own; other groups would become uneven."""
    groups, channels = call.config.get("num_groups"), call.first[1]
    yield from _rows([0])
    if groups not in (1, channels):
        return
    yield from _rows(range(2, len(call.first)), by_parts=False)
    line = _known(call, "split 1", 1, data_in_0=1, weight=0, bias=0)
    repeats = ("num_channels",) if groups == 1 else ("num_channels", "num_groups")
    yield Carried(line.name, line.operands, 1, attributes=repeats, by_parts=False)


@rule("embedding")
def _embedding(call: ShapedCall) -> Iterator[Carried]:
    """weight: (words, features); an index that a device does not have gives zeros there."""
    last = len(call.result) - 1
    # these look at the whole table, or at all indices at once
    by_parts = not any(call.config.get(n) for n in ("max_norm", "sparse", "scale_grad_by_freq"))
    yield from _rows(range(last), by_parts=by_parts)
    repeats = ("embedding_dim",)
    yield Carried("hidden", {"weight": 1}, last, attributes=repeats, by_parts=by_parts)
    yield Carried("vocabulary", {"weight": 0}, None, by_parts=by_parts, is_removable=False)


@rule("places")
def _places(call: ShapedCall) -> Iterator[Carried]:
    """Batch and channel dimensions stay, the rest are places; a batch may be missing."""
    x, shape = call.first, call.result
    if len(call.results) != 1 or len(shape) != len(x) or shape[:1] != x[:1]:
        return
    yield from _rows([0])
    yield from _rows((d for d in (1,) if shape[d] == x[d]), by_parts=False)


@rule("matmul")
def _matmul(call: ShapedCall) -> Iterator[Carried]:
    """(…, n, k) @ (…, k, m)."""
    a, b = call.first, call.operands.get("data_in_1", ())
    if len(a) < 2 or len(b) < 2:
        return
    rows, last = len(call.result) - 2, len(call.result) - 1
    yield from _aligned(call, range(rows))
    yield Carried(f"split {rows}", {"data_in_0": len(a) - 2}, rows)
    yield Carried(f"split {last}", {"data_in_1": len(b) - 1}, last)
    yield Carried("inner", {"data_in_0": len(a) - 1, "data_in_1": len(b) - 2}, None)


@rule("attention")
def _attention(call: ShapedCall) -> Iterator[Carried]:
    """query (…, l, e), key (…, s, e), value (…, s, v), and masks; heads of a key may be shared."""
    ranks = {len(call.operands.get(f"data_in_{i}", ())) for i in range(3)}
    if ranks == {len(call.result)}:
        yield from _aligned(call, range(len(call.result) - 2))


@rule("unflatten")  # the arguments are the sizes of one dimension
@rule("regroup")  # no argument is a size
@rule("reshape")  # the arguments are the new sizes
def _reshape(call: ShapedCall) -> Iterator[Carried]:
    """The same elements in the same order, in other dimensions.

    The outermost dimension of a group of dimensions stays outermost, so a split of it stays.
    """
    for before, after in outermost_dims(call.first, call.result):
        yield Carried(f"split {after}", {"data_in_0": before}, after)


def outermost_dims(before: Shape, after: Shape) -> list[tuple[int, int]]:
    """Pairs of dimensions a split is carried between when elements keep their order.

    >>> outermost_dims((2, 5, 12), (2, 5, 4, 3))
    [(0, 0), (1, 1), (2, 2)]
    >>> outermost_dims((2, 5, 4, 3), (10, 12))
    [(0, 0), (2, 1)]
    """
    if math.prod(before) != math.prod(after) or 0 in before:
        return []
    old, new = _offsets(before), _offsets(after)
    return [(old[inside], new[inside]) for inside in sorted(old, reverse=True) if inside in new]


def _offsets(shape: Shape) -> dict[int, int]:
    """Elements from a dimension inwards -> the dimension, for those that hold more than one."""
    return {math.prod(shape[d:]): d for d, size in enumerate(shape) if size > 1}


def permutation(
    node: fx.Node, rank: int, value_of: Callable[[fx.Node, Tensor], Any]
) -> tuple[int, ...]:
    """Where each dimension of the result comes from, seen by running on sizes all different.

    `value_of` gives the value of an argument; of the tensor, that which it is handed.
    """
    sizes = list(range(2, 2 + rank))
    probe = torch.empty(sizes, device="meta")
    given = fx.node.map_arg((node.args, node.kwargs), lambda source: value_of(source, probe))
    args, kwargs = given
    target: Any = node.target
    run = getattr(Tensor, target) if node.op == "call_method" else target
    return tuple(sizes.index(n) for n in run(*args, **kwargs).shape)


@rule("permute")
def _permute(call: ShapedCall) -> Iterator[Carried]:
    """Dimensions in another order."""
    for after, before in enumerate(call.permutation or ()):
        yield Carried(f"split {after}", {"data_in_0": before}, after)


@rule("expand")
def _expand(call: ShapedCall) -> Iterator[Carried]:
    """Dimensions of size 1 are repeated; the arguments are the new sizes."""
    first = len(call.result) - len(call.first)
    if len(call.operands) == len(call.results) == 1:
        for dim, size in enumerate(call.first):
            if size == call.result[first + dim]:
                yield Carried(f"split {first + dim}", {"data_in_0": dim}, first + dim)


@rule("getitem")
def _getitem(call: ShapedCall) -> Iterator[Carried]:
    """A part of a tuple, or slices of a tensor."""
    x, index = call.first, call.config.get("index")
    if type(index) is int and (len(call.operands) > 1 or call.result == x):  # one of some results
        yield from _rows(range(len(call.result)))
    elif len(call.operands) == 1:
        for before, after in _untouched_dims(index, len(x)):
            yield Carried(f"split {after}", {"data_in_0": before}, after)


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


@rule("cat")
def _cat(call: ShapedCall) -> Iterator[Carried]:
    """One after the other along a dimension."""
    if len({len(s) for s in call.operands.values()}) == 1:
        yield from _same_dims(call, call.dims(default=0))


@rule("split")
def _split(call: ShapedCall) -> Iterator[Carried]:
    """Parts along a dimension."""
    yield from _same_dims(call, call.dims(default=0))


def _same_dims(call: ShapedCall, whole: set[int] | None) -> Iterator[Carried]:
    """Every dimension of the result but `whole`; operands and results alike."""
    if whole is None:
        return
    for dim in range(len(call.result)):
        if dim not in whole:
            yield Carried(f"split {dim}", dict.fromkeys(call.operands, dim), dim)


@rule("stack")
def _stack(call: ShapedCall) -> Iterator[Carried]:
    """Side by side along a new dimension."""
    given = call.config.get("dim", 0)
    is_alike = len(set(call.operands.values())) == 1 and len(call.result) == len(call.first) + 1
    if type(given) is int and is_alike:
        new = given % len(call.result)
        for dim in range(len(call.first)):
            after = dim + (dim >= new)
            yield Carried(f"split {after}", dict.fromkeys(call.operands, dim), after)


@rule("unbind")
def _unbind(call: ShapedCall) -> Iterator[Carried]:
    """The slices along a dimension, which is gone."""
    gone = call.dims(default=0)
    if gone is not None and len(call.operands) == 1:
        yield from _without(call, gone, keeps=False)


@rule("reduce")
def _reduce(call: ShapedCall) -> Iterator[Carried]:
    """Some dimensions are summed up, or the like: those need all their elements."""
    gone = call.dims()
    if gone is not None and len(call.operands) == 1:
        yield from _without(call, gone, keeps=len(call.result) == len(call.first))


def _without(call: ShapedCall, gone: set[int], *, keeps: bool) -> Iterator[Carried]:
    after = 0
    for before in range(len(call.first)):
        if before not in gone:
            yield Carried(f"split {after}", {"data_in_0": before}, after)
        after += keeps or before not in gone


@rule("parameter")
def _parameter(call: ShapedCall) -> Iterator[Carried]:
    """A node that only names a parameter."""
    yield from _same_dims(call, set())


@rule("past")  # keys and values with those of a cache, which cannot be split
@rule(FACTS)
def _facts(call: ShapedCall) -> Iterator[Carried]:
    """Nothing: sizes and types are read, not elements."""
    yield from ()
