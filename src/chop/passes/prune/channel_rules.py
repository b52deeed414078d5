"""Rules for how each call carries the indices of every dimension.

`follow` derives them from the dimension rules of `chop.ir.dims`. Ops that split or merge dimensions
have a rule in this module. A rule receives a call, ties the labels that must stay or go together,
and returns the axes of the result. It raises `UnclearError` if it cannot follow the call; then
everything that the call touches is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from chop.ir.dims import FACTS, Carried, ShapedCall, carried
from chop.passes.prune.coupling import (
    ChannelAxes,
    Kept,
    LabelledCall,
    Labels,
    Rule,
    UnclearError,
    axes_in,
    frozen_dim,
)

PACKED = 3
"""A leading split of this size packs query, key and value; the heads come after it."""


def _dim(call: LabelledCall, rank: int) -> int:
    dim = call.argument("dim", "axis")
    dim = 0 if dim is None else dim
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise UnclearError
    return dim % rank


def follow(call: LabelledCall) -> Any:
    """Label every index by the dimension that carries it; freeze the others."""
    operands = call.named_operands()
    results = axes_in(call.result)
    shapes = {name: axes.shape for name, axes in operands.items()}
    result_shapes = tuple(axes.shape for axes in results)
    shaped = ShapedCall(call.op.dims, shapes, result_shapes, call.settings(), call.permutation())
    # a function with an explicit size would need another argument
    sizes = shaped.config if call.module is None else {}
    lines = [(line, _tied(call, line, operands, sizes)) for line in carried(shaped)]
    carried_dims = {item for line, _ in lines for item in line.operands.items()}
    for name, axes in operands.items():
        call.labels.freeze(*(d for i, d in enumerate(axes.dims) if (name, i) not in carried_dims))
    _note_layer(call, lines)
    after = {line.result: labels for line, labels in lines}
    new = [
        ChannelAxes(tuple(after.get(dim, frozen_dim(size)) for dim, size in enumerate(axes.shape)))
        for axes in results
    ]
    return new[0] if isinstance(call.result, ChannelAxes) else tuple(new)


def _tied(
    call: LabelledCall, line: Carried, operands: Mapping[str, ChannelAxes], sizes: Mapping[str, Any]
) -> Labels:
    """Return the labels of one dimension, tied over the operands that have it."""
    dims = [operands[name].dims[d] for name, d in line.operands.items() if d is not None]
    if len({len(dim) for dim in dims}) != 1:
        raise UnclearError
    for dim in dims[1:]:
        call.labels.tie(dims[0], dim)
    if not line.is_removable or any(name in sizes for name in line.attributes):
        call.labels.freeze(dims[0])
    return dims[0]


def _note_layer(call: LabelledCall, lines: Sequence[tuple[Carried, Labels]]) -> None:
    """Record the channels that a layer makes, and its attributes that repeat a dimension's size."""
    repeated: dict[str, list[Labels]] = {}
    for line, labels in lines:
        if line.is_made:
            call.produces(labels)
        for name in line.attributes:
            repeated.setdefault(name, []).append(labels)
    for name, dims in repeated.items():
        size = getattr(call.module, name, None)
        if isinstance(size, tuple) and list(size) == [len(dim) for dim in dims]:
            call.sets(name, lambda remaining, dims=dims: tuple(map(remaining, dims)))  # type: ignore[misc]
        elif size == len(dims[0]):
            call.sets(name, lambda remaining, dim=dims[0]: remaining(dim))  # type: ignore[misc]


def tie_broadcast(
    call: LabelledCall, operands: Sequence[ChannelAxes], shape: Sequence[int]
) -> tuple[Labels, ...]:
    """Return the dimensions of operands broadcast to `shape`, tied where they meet."""
    result = []
    for back in range(len(shape), 0, -1):
        met = [axes.dims[-back] for axes in operands if len(axes) >= back]
        result.append(_meet(call, met, shape[len(shape) - back]))
    return tuple(result)


def _meet(call: LabelledCall, dims: list[Labels], size: int) -> Labels:
    full = [dim for dim in dims if len(dim) == size]
    if any(len(dim) not in (1, size) for dim in dims):
        raise UnclearError
    call.labels.freeze(*(dim for dim in dims if len(dim) != size))
    for dim in full[1:]:
        call.labels.tie(full[0], dim)
    return full[0] if full else frozen_dim(size)


def attention(call: LabelledCall) -> ChannelAxes:
    """Label attention: query (…, l, e), key (…, s, e), value (…, s, v).

    The default scale depends on e, so e is frozen.
    """
    query, key, value = (call.value(call.argument(name)) for name in ("query", "key", "value"))
    if not all(isinstance(axes, ChannelAxes) for axes in (query, key, value)):
        raise UnclearError
    mask = call.value(call.argument("attn_mask"))
    call.labels.freeze(query.dims[-1], key.dims[-1])
    shared = [_share(call, query, other) for other in (key, value)]
    heads = [ChannelAxes(x.dims[:-2]) for x in (query, *shared)]
    if isinstance(mask, ChannelAxes):
        heads.append(ChannelAxes(mask.dims[:-2]))
        call.labels.freeze(*mask.dims[-2:])
    call.labels.freeze(query.dims[-2], key.dims[-2], value.dims[-2])
    return ChannelAxes(
        (*tie_broadcast(call, heads, call.shape[:-2]), query.dims[-2], value.dims[-1])
    )


def _share(call: LabelledCall, query: ChannelAxes, other: ChannelAxes) -> ChannelAxes:
    """Repeat the heads of `other` for the query heads that share them (grouped queries)."""
    if len(other) < 3 or other.shape[-3] == query.shape[-3]:
        return other
    repeats = query.shape[-3] // other.shape[-3]
    if call.coupling.by_query:
        call.labels.freeze(other.dims[-3])
        places = query.dims[-3].reshape(-1, repeats)
        call.labels.tie(places[:1], places)
        call.coupling.repeats.append(places[0])
        heads = query.dims[-3]
    else:
        heads = np.repeat(other.dims[-3], repeats)
    return ChannelAxes((*other.dims[:-3], heads, *other.dims[-2:]))


def reshape(call: LabelledCall) -> ChannelAxes:
    """Label view and reshape, whose arguments are the new sizes."""
    return _with_written_sizes(call, regroup(call))


def _with_written_sizes(call: LabelledCall, result: ChannelAxes) -> ChannelAxes:
    by_query = call.coupling.by_query
    call.rewrites(lambda node, remaining: _write_sizes(node, result, remaining, by_query))
    return result


def regroup(call: LabelledCall) -> ChannelAxes:
    """Label the same elements in the same order under other sizes.

    Runs of dimensions with equal products match: one dimension may become several (split), or
    several one (merge).
    """
    runs = _runs(call.first().dims, call.shape)
    return ChannelAxes(tuple(dim for old, sizes in runs for dim in _match(call, old, sizes)))


def _runs(dims: Sequence[Labels], shape: Sequence[int]) -> Iterable[tuple[list[Labels], list[int]]]:
    """Yield the shortest runs of old dimensions and new sizes with equal products."""
    i = j = 0
    while i < len(dims) or j < len(shape):
        old, new = list(dims[i : i + 1]), list(shape[j : j + 1])
        i, j = i + 1, j + 1
        while math.prod(map(len, old)) != math.prod(new):
            if math.prod(map(len, old)) < math.prod(new) and i < len(dims):
                old, i = [*old, dims[i]], i + 1
            elif j < len(shape):
                new, j = [*new, shape[j]], j + 1
            else:
                raise UnclearError
        yield old, new


def _match(call: LabelledCall, old: list[Labels], sizes: list[int]) -> list[Labels]:
    wide = [dim for dim in old if len(dim) > 1]
    call.labels.freeze(*(dim for dim in old if len(dim) == 1))
    if len(wide) <= 1 and sum(size > 1 for size in sizes) <= 1:
        return [wide[0] if size > 1 else frozen_dim(size) for size in sizes]
    if len(wide) <= 1:
        return _split(call, wide[0], sizes)
    if sum(size > 1 for size in sizes) == 1:
        merged = _merge(call, wide)
        return [merged if size > 1 else frozen_dim(size) for size in sizes]
    call.labels.freeze(*old)
    return [frozen_dim(size) for size in sizes]


def _split(call: LabelledCall, dim: Labels, sizes: list[int]) -> list[Labels]:
    """Split a dimension; only the outermost part, the heads, can be removed."""
    result = [frozen_dim(size) for size in sizes]
    if call.labels.is_frozen(dim):
        return result
    wide = [i for i, size in enumerate(sizes) if size > 1]
    axis = wide[1] if len(wide) > 2 and sizes[wide[0]] == PACKED else wide[0]
    within = np.moveaxis(dim.reshape(sizes), axis, 0).reshape(sizes[axis], -1)
    call.labels.tie(within[:, :1], within)
    call.coupling.heads.append(within[:, 0])
    result[axis] = within[:, 0]
    return result


def _merge(call: LabelledCall, dims: list[Labels]) -> Labels:
    """Merge dimensions; each index of the first removable one becomes a run of the result."""
    free = [i for i, dim in enumerate(dims) if not call.labels.is_frozen(dim)]
    call.labels.freeze(*(dims[i] for i in free[1:]))
    axis = free[0] if free else 0
    shape = [len(dim) for dim in dims]
    index = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(dims))])
    return dims[axis][np.broadcast_to(index, shape).reshape(-1)]


def _is_stale(size: Any, dim: Labels, remaining: Kept, by_query: bool) -> bool:
    """Return True if an argument repeats the size of a dimension that shrinks.

    A computed size follows the shapes it is computed from, except for the number of repeats of a
    head, which is a constant in it.
    """
    if isinstance(size, fx.Node):
        return by_query and remaining(dim) != len(dim)
    return isinstance(size, int) and size == len(dim)


def _write_sizes(node: fx.Node, result: ChannelAxes, remaining: Kept, by_query: bool) -> None:
    """Replace the sizes among the arguments that are numbers."""
    first, rest = node.args[0], node.args[1:]
    listed = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else None
    sizes: Sequence[Any] = rest if listed is None else listed
    if len(sizes) != len(result):
        return  # view(dtype), view_as(other): no sizes
    new = [
        remaining(dim) if _is_stale(size, dim, remaining, by_query) else size
        for size, dim in zip(sizes, result.dims, strict=True)
    ]
    node.args = (first, *new) if listed is None else (first, new)


def expand(call: LabelledCall) -> ChannelAxes:
    """Label expand, which repeats dimensions of size 1; the arguments are the new sizes."""
    operands = call.operands()
    if len(operands) > 1:
        return ChannelAxes(tie_broadcast(call, operands, call.shape))
    dims = tie_broadcast(call, [call.first()], call.shape)
    return _with_written_sizes(
        call, ChannelAxes(_repeated(call, dims) if call.coupling.by_query else dims)
    )


def _repeated(call: LabelledCall, dims: tuple[Labels, ...]) -> tuple[Labels, ...]:
    """Give the repeats of a head that several queries share labels that can be removed."""
    shape, result = call.first().shape, list(dims)
    if len(shape) != len(dims):
        return dims
    for i in range(1, len(dims)):
        if shape[i] == 1 < len(dims[i]) and not call.labels.is_frozen(dims[i - 1]):
            call.labels.freeze(dims[i - 1])
            result[i] = call.labels.fresh(len(dims[i]))
            call.coupling.repeats.append(result[i])
    return tuple(result)


def cat(call: LabelledCall) -> ChannelAxes:
    """Label a concatenation along a dimension."""
    parts = axes_in([call.value(n) for n in call.node.args[0]])  # type: ignore[union-attr]
    dim = _dim(call, len(parts[0]))
    meeting = [[part.dims[i] for part in parts] for i in range(len(parts[0]))]
    return ChannelAxes(
        tuple(
            np.concatenate(dims) if i == dim else _meet(call, dims, parts[0].shape[i])
            for i, dims in enumerate(meeting)
        )
    )


def split(call: LabelledCall) -> tuple[ChannelAxes, ...]:
    """Label the parts along a dimension; write out their sizes if these change."""
    x = call.first()
    dim = _dim(call, len(x))
    ends = np.cumsum([part.shape[dim] for part in axes_in(call.result)])
    parts = np.split(x.dims[dim], ends[:-1])

    def write_parts(node: fx.Node, remaining: Kept) -> None:
        sizes = [remaining(part) for part in parts]
        if sizes != [len(part) for part in parts]:
            node.op, node.target = "call_function", torch.split
            node.args, node.kwargs = (node.args[0], sizes, dim), {}

    call.rewrites(write_parts)
    return tuple(ChannelAxes((*x.dims[:dim], part, *x.dims[dim + 1 :])) for part in parts)


def getitem(call: LabelledCall) -> Any:
    """Label an item of a tuple, or slices of a tensor."""
    source, index = call.node.args[:2]
    value = call.value(source)
    if isinstance(value, tuple | list) and isinstance(index, int):
        return value[index]
    if value is None and not axes_in(call.result):
        return None
    if not isinstance(value, ChannelAxes):
        raise UnclearError
    return _index(call, value, index if isinstance(index, tuple) else (index,))


def _index(call: LabelledCall, x: ChannelAxes, index: tuple[Any, ...]) -> ChannelAxes:
    dims = iter(x.dims)
    result: list[Labels] = []
    slices: dict[int, Labels] = {}
    for place, each in enumerate(_without_ellipsis(index, len(x))):
        if each is None:
            result.append(frozen_dim(1))
            continue
        dim = next(dims)
        if _is_plain_slice(each):
            result.append(dim[each])
            slices[place] = dim
            continue
        call.labels.freeze(dim)  # an index, or a slice whose ends are computed
        if isinstance(each, slice):
            result.append(frozen_dim(call.shape[len(result)]))
        elif not isinstance(each, int):
            raise UnclearError
    call.rewrites(lambda node, remaining: _write_slices(node, slices, remaining, len(x)))
    return ChannelAxes((*result, *dims))


def _without_ellipsis(index: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    if not any(each is Ellipsis for each in index):
        return index
    at = next(i for i, each in enumerate(index) if each is Ellipsis)
    used = sum(each is not None and each is not Ellipsis for each in index)
    return (*index[:at], *[slice(None)] * (rank - used), *index[at + 1 :])


def _is_plain_slice(index: Any) -> bool:
    if not isinstance(index, slice) or index.step not in (None, 1):
        return False
    return all(end is None or isinstance(end, int) for end in (index.start, index.stop))


def _write_slices(node: fx.Node, slices: dict[int, Labels], remaining: Kept, rank: int) -> None:
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    new = list(_without_ellipsis(index, rank))
    for place, dim in slices.items():
        if remaining(dim) != len(dim):
            start, stop, _ = new[place].indices(len(dim))
            new[place] = slice(remaining(dim[:start]), remaining(dim[: max(stop, start)]))
            node.args = (node.args[0], tuple(new))


def past(call: LabelledCall) -> tuple[ChannelAxes, ...]:
    """Label cached keys and values (…, heads, tokens, width), joined with the new ones."""
    results = []
    for axes in (call.value(each) for each in call.node.args[1:3]):
        if not isinstance(axes, ChannelAxes) or len(axes) < 2:
            raise UnclearError
        call.labels.freeze(axes.dims[-2])
        results.append(ChannelAxes((*axes.dims[:-2], frozen_dim(axes.shape[-2]), axes.dims[-1])))
    return tuple(results)


def facts(call: LabelledCall) -> None:
    """Accept a node that reads sizes and types but no elements."""
    if axes_in(call.result):
        raise UnclearError


OWN_RULES: dict[str, Rule | None] = {
    "attention": attention,
    "reshape": reshape,
    "regroup": regroup,
    "expand": expand,
    "cat": cat,
    "split": split,
    "getitem": getitem,
    "past": past,
    FACTS: facts,
    # everything these touch is frozen: sizes among their arguments are not rewritten
    "unflatten": None,
    "addmm": None,
}
"""Rules that override the dimension rule of the same name; None freezes the call."""


def find_rule(name: str) -> Rule | None:
    """Return the rule of an op whose row has `dims=name`."""
    return OWN_RULES.get(name, follow)
