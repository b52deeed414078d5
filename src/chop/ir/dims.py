"""Dimension rules: how each op maps the dimensions of its operands to those of its result.

The column `dims` of the op table names a rule of `DIMENSION_RULES`. A rule reads the shapes of a
call and yields a `Carried` for every dimension that passes through it index by index. Structured
pruning derives which indices are removed together, and sharding what may be split over devices.
Both need every other dimension whole, which is always right.

To add a rule, write a generator under `@rule("name")`. Further rules of pruning (ops that cut or
join indices) are in `chop.passes.prune.channel_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import RegistryError
from chop.registry import Registry, suggest

Shape = tuple[int, ...]

LAYER_SETTINGS = (
    *("dim", "groups", "num_groups", "normalized_shape"),
    *("max_norm", "sparse", "scale_grad_by_freq", "batch_first"),
)
"""Attributes of a layer that a rule reads like arguments of the call."""
FACTS = "facts"
"""Rule of ops that read sizes and types: they carry no dimension and need none whole."""
_DIM_NAMES = ("dim", "dims", "axis")


@dataclass(frozen=True)
class ShapedCall:
    """Call of an op: the shapes of its tensors, and its other arguments.

    Operands are `data_in_0` … and the parameters by their names.
    """

    rule: str | None
    operands: Mapping[str, Shape]
    results: tuple[Shape, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    permutation: tuple[int, ...] | None = None
    """Dimension of the operand for each of the result, for a node that reorders dimensions."""

    @property
    def result(self) -> Shape:
        """Shape of the first result."""
        return self.results[0]

    @property
    def first(self) -> Shape:
        """Shape of the first operand."""
        return self.operands["data_in_0"]

    def dims(self, *, default: int | None = None) -> set[int] | None:
        """Return the dimensions of the first operand that the arguments name, or None."""
        dims = next((d for n in _DIM_NAMES if (d := self.config.get(n)) is not None), default)
        listed: list[Any] = list(dims) if isinstance(dims, tuple | list) else [dims]
        if not listed or not all(type(d) is int for d in listed):
            return None
        return {d % len(self.first) for d in listed}


@dataclass(frozen=True)
class Carried:
    """Dimension that passes through a call index by index.

    `operands`: operand -> its dimension; None if it is broadcast along it. `result`: dimension of
    the result; None if the result is the sum over it, to which the operands `added_once` are
    added. `attributes`: attributes of a layer with its size. `by_parts`: the op on a part of the
    indices computes that part of the result (or of the sum). `is_removable`: indices can be
    removed, because they are not values elsewhere. `is_made`: the weight of a layer creates it.
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
    """Raise if the column `dims` names no rule."""
    if name is not None and name not in DIMENSION_RULES:
        nearest = suggest(name, DIMENSION_RULES)
        raise RegistryError(f"{where}: unknown dimension rule '{name}'. {nearest}")


def carried(call: ShapedCall) -> list[Carried]:
    """Return the dimensions that `call` carries; none without a rule or without tensors."""
    if call.rule is None or not call.results or not call.operands:
        return []
    return list(DIMENSION_RULES[call.rule](call))


def _present(call: ShapedCall, **operands: int) -> dict[str, int]:
    """Return those of `operands` that this call has."""
    return {name: dim for name, dim in operands.items() if name in call.operands}


def _rows(dims: Iterable[int], **more: Any) -> Iterator[Carried]:
    """Yield dimensions of the first operand that keep their place, with all others whole."""
    for dim in dims:
        yield Carried(f"split {dim}", {"data_in_0": dim}, dim, **more)


def _aligned(call: ShapedCall, dims: Iterable[int]) -> Iterator[Carried]:
    """Yield dimensions of the result that every operand has too, or is broadcast along."""
    for dim in dims:
        own = {n: dim - len(call.result) + len(s) for n, s in call.operands.items()}
        operands = {
            n: d if d >= 0 and (call.operands[n][d] != 1 or call.result[dim] == 1) else None
            for n, d in own.items()
        }
        yield Carried(f"split {dim}", operands, dim)


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that `shapes` broadcast to, or None."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    sizes = [{n for n in column if n != 1} or {1} for column in zip(*padded, strict=True)]
    return tuple(s.pop() for s in sizes) if all(len(s) == 1 for s in sizes) else None


@rule("elementwise")
def _elementwise(call: ShapedCall) -> Iterator[Carried]:
    """Carry all dimensions: elements depend on operands' elements at the same place."""
    if len(call.results) == 1 and _broadcast(list(call.operands.values())) == call.result:
        yield from _aligned(call, range(len(call.result)))


@rule("per_sample")
def _per_sample(call: ShapedCall) -> Iterator[Carried]:
    """Carry as elementwise, for ops whose effect depends on the sample or channel."""
    for line in _elementwise(call):
        yield line if line.result == 0 else replace(line, by_parts=False)


@rule("along_dimension")
def _along_dimension(call: ShapedCall) -> Iterator[Carried]:
    """Carry as elementwise, except dimensions whose elements depend on each other."""
    whole = call.dims()
    if whole is not None and len(call.operands) == 1 and call.results == (call.first,):
        yield from _aligned(call, [d for d in range(len(call.result)) if d not in whole])


@rule("linear")
def _linear(call: ShapedCall) -> Iterator[Carried]:
    """Carry a linear layer's dimensions: weight (out, in), bias (out)."""
    last = len(call.result) - 1
    if len(call.operands.get("weight", ())) != 2:
        return
    yield from _rows(range(last))
    yield _layer_output(call, "column", last, "out_features", weight=0, bias=0)
    yield _layer_input(call, "in_features", data_in_0=last, weight=1)


def _layer_output(
    call: ShapedCall, name: str, result: int, attribute: str, **operands: int
) -> Carried:
    own = _present(call, **operands)
    return Carried(name, own, result, attributes=(attribute,), is_made=True)


def _layer_input(call: ShapedCall, attribute: str, **operands: int) -> Carried:
    added = ("bias",) if "bias" in call.operands else ()
    return Carried("row", _present(call, **operands), None, added, (attribute,))


@rule("addmm")
def _addmm(call: ShapedCall) -> Iterator[Carried]:
    """Carry the dimensions of a vector plus the product of two matrices."""
    ranks = [len(call.operands.get(f"data_in_{i}", ())) for i in range(3)]
    if ranks != [1, 2, 2]:
        return
    yield Carried("split 0", {"data_in_1": 0}, 0)
    yield Carried("column", {"data_in_0": 0, "data_in_2": 1}, 1)
    yield Carried("row", {"data_in_1": 1, "data_in_2": 0}, None, added_once=("data_in_0",))


@rule("conv")
def _conv(call: ShapedCall) -> Iterator[Carried]:
    """Carry a convolution's dimensions, without groups or depthwise: weight (out, in, places)."""
    weight, x = call.operands.get("weight", ()), call.first
    channel = len(x) - len(weight) + 1  # 0 without a batch
    if channel not in (0, 1):
        return
    yield from _rows(range(channel))
    if x[channel] == weight[1]:  # one group
        yield _layer_output(call, "column", channel, "out_channels", weight=0, bias=0)
        yield _layer_input(call, "in_channels", data_in_0=channel, weight=1)
    elif weight[:2] == (x[channel], 1):
        own = _present(call, data_in_0=channel, weight=0, bias=0)
        repeats = ("in_channels", "out_channels", "groups")
        yield Carried("depthwise", own, channel, attributes=repeats, by_parts=False)


@rule("conv_transpose")
def _conv_transpose(call: ShapedCall) -> Iterator[Carried]:
    """Carry a transposed convolution's dimensions: weight (in, out, places …)."""
    weight, x = call.operands.get("weight", ()), call.first
    channel = len(x) - len(weight) + 1
    if channel not in (0, 1) or call.config.get("groups") not in (None, 1):
        return
    yield from _rows(range(channel))
    yield _layer_output(call, "column", channel, "out_channels", weight=1, bias=0)
    yield _layer_input(call, "in_channels", data_in_0=channel, weight=0)


@rule("norm_last")
def _norm_last(call: ShapedCall) -> Iterator[Carried]:
    """Carry the dimensions of a norm over the last ones, with a parameter per element."""
    shape = call.config.get("normalized_shape")
    if not isinstance(shape, tuple | list):
        return
    leading = len(call.result) - len(shape)
    yield from _rows(range(leading))
    for i in range(len(shape)):
        dim = leading + i
        own = _present(call, data_in_0=dim, weight=i, bias=i)
        repeats = ("normalized_shape",)
        yield Carried(f"split {dim}", own, dim, attributes=repeats, by_parts=False)


CHANNEL_TENSORS = ("weight", "bias", "running_mean", "running_var")


@rule("norm_channel")
def _norm_channel(call: ShapedCall) -> Iterator[Carried]:
    """Carry the dimensions of a norm with parameters per channel, or one for all."""
    if call.results != (call.first,):
        return
    yield from _rows((d for d in range(len(call.first)) if d != 1), by_parts=False)
    if len(call.first) > 1:
        own = {n: 0 for n in CHANNEL_TENSORS if call.operands.get(n, (1,)) != (1,)}
        repeats = ("num_features", "num_parameters") if own else ()
        yield Carried("split 1", {"data_in_0": 1} | own, 1, attributes=repeats, by_parts=False)


@rule("norm_group")
def _norm_group(call: ShapedCall) -> Iterator[Carried]:
    """Carry the dimensions of a group norm: channels only if there is one group or one each."""
    groups, channels = call.config.get("num_groups"), call.first[1]
    yield from _rows([0])
    if groups not in (1, channels):
        return
    yield from _rows(range(2, len(call.first)), by_parts=False)
    own = _present(call, data_in_0=1, weight=0, bias=0)
    repeats = ("num_channels",) if groups == 1 else ("num_channels", "num_groups")
    yield Carried("split 1", own, 1, attributes=repeats, by_parts=False)


@rule("embedding")
def _embedding(call: ShapedCall) -> Iterator[Carried]:
    """Carry an embedding's dimensions: weight (words, features); missing words yield zeros."""
    last = len(call.result) - 1
    # these options read the whole table, or all indices together
    by_parts = not any(call.config.get(n) for n in ("max_norm", "sparse", "scale_grad_by_freq"))
    yield from _rows(range(last), by_parts=by_parts)
    repeats = ("embedding_dim",)
    yield Carried("hidden", {"weight": 1}, last, attributes=repeats, by_parts=by_parts)
    yield Carried("vocabulary", {"weight": 0}, None, by_parts=by_parts, is_removable=False)


@rule("expert_mixture")
def _expert_mixture(call: ShapedCall) -> Iterator[Carried]:
    """Carry the tokens of experts (tokens, features), and the experts, whose results are added."""
    if all(len(call.operands.get(name, ())) == 3 for name in ("gate_up_proj", "down_proj")):
        yield Carried("split 0", {f"data_in_{i}": 0 for i in range(3)}, 0, is_removable=False)
        experts = {"gate_up_proj": 0, "down_proj": 0}
        yield Carried("experts", experts, None, is_removable=False)


@rule("class_loss")
def _class_loss(call: ShapedCall) -> Iterator[Carried]:
    """Carry the rows of a loss of logits (rows, classes) and whole labels (rows), as a sum."""
    labels = call.operands.get("data_in_1")
    is_old = any(call.config.get(name) is not None for name in ("size_average", "reduce"))
    if call.results == ((),) and len(call.first) == 2 and labels == call.first[:1] and not is_old:
        yield Carried("split 0", {"data_in_0": 0}, None, is_removable=False)


@rule("places")
def _places(call: ShapedCall) -> Iterator[Carried]:
    """Carry batch and channel dimensions; the rest are places, and the batch may be missing."""
    x, shape = call.first, call.result
    if len(call.results) != 1 or len(shape) != len(x) or shape[:1] != x[:1]:
        return
    yield from _rows([0])
    yield from _rows((d for d in (1,) if shape[d] == x[d]), by_parts=False)


@rule("matmul")
def _matmul(call: ShapedCall) -> Iterator[Carried]:
    """Carry the dimensions of (…, n, k) @ (…, k, m)."""
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
    """Carry batch and heads of query (…, l, e), key (…, s, e), value (…, s, v) and masks."""
    ranks = {len(call.operands.get(f"data_in_{i}", ())) for i in range(3)}
    if ranks == {len(call.result)}:
        yield from _aligned(call, range(len(call.result) - 2))


@rule("unflatten")  # the arguments are the sizes of one dimension
@rule("regroup")  # no argument is a size
@rule("reshape")  # the arguments are the new sizes
def _reshape(call: ShapedCall) -> Iterator[Carried]:
    """Carry the outermost dimensions of groups that a reshape joins or divides."""
    for before, after in outermost_dims(call.first, call.result):
        yield Carried(f"split {after}", {"data_in_0": before}, after)


def outermost_dims(before: Shape, after: Shape) -> list[tuple[int, int]]:
    """Return pairs of dimensions that a reshape carries a split between.

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
    """Map the elements from a dimension inwards to the dimension, if its size is above 1."""
    return {math.prod(shape[d:]): d for d, size in enumerate(shape) if size > 1}


def permutation(
    node: fx.Node, rank: int, value_of: Callable[[fx.Node, Tensor], Any]
) -> tuple[int, ...]:
    """Return the operand's dimension for each of the result, by a run on distinct sizes.

    `value_of(node, probe)` is the value of an argument; for the tensor operand it is `probe`.
    """
    sizes = list(range(2, 2 + rank))
    probe = torch.empty(sizes, device="meta")
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: value_of(n, probe))
    target: Any = node.target
    run = getattr(Tensor, target) if node.op == "call_method" else target
    return tuple(sizes.index(n) for n in run(*args, **kwargs).shape)


@rule("permute")
def _permute(call: ShapedCall) -> Iterator[Carried]:
    """Carry dimensions to another order."""
    for after, before in enumerate(call.permutation or ()):
        yield Carried(f"split {after}", {"data_in_0": before}, after)


@rule("expand")
def _expand(call: ShapedCall) -> Iterator[Carried]:
    """Carry dimensions that are not repeated; the arguments are the new sizes."""
    first = len(call.result) - len(call.first)
    if len(call.operands) == len(call.results) == 1:
        for dim, size in enumerate(call.first):
            if size == call.result[first + dim]:
                yield Carried(f"split {first + dim}", {"data_in_0": dim}, first + dim)


@rule("getitem")
def _getitem(call: ShapedCall) -> Iterator[Carried]:
    """Carry all dimensions of a tuple's part, or those of a tensor that an index keeps."""
    x, index = call.first, call.config.get("index")
    if type(index) is int and (len(call.operands) > 1 or call.result == x):  # one of some results
        yield from _rows(range(len(call.result)))
    elif len(call.operands) == 1:
        for before, after in _untouched_dims(index, len(x)):
            yield Carried(f"split {after}", {"data_in_0": before}, after)


def _untouched_dims(index: Any, rank: int) -> list[tuple[int, int]]:
    """Return pairs of dimensions that `x[index]` keeps whole; none for an unknown index.

    >>> _untouched_dims((slice(None), 0), 3)
    [(0, 0), (2, 1)]
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(p is None or p is Ellipsis or type(p) in (int, slice) for p in parts):
        return []
    indexed = sum(p is not None and p is not Ellipsis for p in parts)
    rest = [slice(None)] * (rank - indexed)
    where = next((i for i, p in enumerate(parts) if p is Ellipsis), None)
    parts = [*parts, *rest] if where is None else [*parts[:where], *rest, *parts[where + 1 :]]
    pairs, before, after = [], 0, 0
    for part in parts:
        if part == slice(None):
            pairs.append((before, after))
        before += part is not None
        after += part is None or isinstance(part, slice)
    return pairs


@rule("cat")
def _cat(call: ShapedCall) -> Iterator[Carried]:
    """Carry all dimensions except the concatenated one."""
    if len({len(s) for s in call.operands.values()}) == 1:
        yield from _same_dims(call, call.dims(default=0))


@rule("split")
def _split(call: ShapedCall) -> Iterator[Carried]:
    """Carry all dimensions except the one that is split."""
    yield from _same_dims(call, call.dims(default=0))


def _same_dims(call: ShapedCall, whole: set[int] | None) -> Iterator[Carried]:
    """Yield every dimension of the result except `whole`."""
    if whole is None:
        return
    for dim in range(len(call.result)):
        if dim not in whole:
            yield Carried(f"split {dim}", dict.fromkeys(call.operands, dim), dim)


@rule("stack")
def _stack(call: ShapedCall) -> Iterator[Carried]:
    """Carry all dimensions; a new one is inserted."""
    position = call.config.get("dim", 0)
    is_plain = len(set(call.operands.values())) == 1 and len(call.result) == len(call.first) + 1
    if type(position) is int and is_plain:
        new = position % len(call.result)
        for dim in range(len(call.first)):
            after = dim + (dim >= new)
            yield Carried(f"split {after}", dict.fromkeys(call.operands, dim), after)


@rule("unbind")
def _unbind(call: ShapedCall) -> Iterator[Carried]:
    """Carry all dimensions except the one that is unbound."""
    removed = call.dims(default=0)
    if removed is not None and len(call.operands) == 1:
        yield from _without(call, removed, keeps=False)


@rule("reduce")
def _reduce(call: ShapedCall) -> Iterator[Carried]:
    """Carry all dimensions except those that are reduced."""
    removed = call.dims()
    if removed is not None and len(call.operands) == 1:
        yield from _without(call, removed, keeps=len(call.result) == len(call.first))


def _without(call: ShapedCall, removed: set[int], *, keeps: bool) -> Iterator[Carried]:
    after = 0
    for before in range(len(call.first)):
        if before not in removed:
            yield Carried(f"split {after}", {"data_in_0": before}, after)
        after += keeps or before not in removed


@rule("parameter")
def _parameter(call: ShapedCall) -> Iterator[Carried]:
    """Carry all dimensions of a node that reads a parameter."""
    yield from _same_dims(call, set())


@rule("past")  # keys and values with those of a cache, which cannot be split
@rule(FACTS)
def _facts(call: ShapedCall) -> Iterator[Carried]:
    """Carry nothing: sizes and types are read, not elements."""
    yield from ()
