"""The rules of the op table's column `channels`, one function each.

A rule takes a call, ties what must stay or go together, and gives the axes of the result. It
raises `UnclearError` where it cannot tell, and everything the call touches is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from chop.passes.graph.transforms.prune.coupling import Call, Kept, Rule, UnclearError
from chop.passes.graph.transforms.prune.labels import Axes, Labels, axes_in, frozen_dim

PACKED = 3
"""A leading split of this size packs query, key and value; the heads come after it."""


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnclearError
    return value


def _dim(call: Call, rank: int, *names: str, default: Any = None) -> int:
    found = call.argument(*(names or ("dim", "axis")))
    return _integer(default if found is None else found) % rank


def elementwise(call: Call) -> Axes:
    """Operands at the same place, broadcast."""
    return Axes(tie_broadcast(call, call.operands(), call.shape))


def tie_broadcast(call: Call, operands: Sequence[Axes], shape: Sequence[int]) -> tuple[Labels, ...]:
    """The dimensions of operands broadcast to `shape`, tied where they meet."""
    result = []
    for back in range(len(shape), 0, -1):
        met = [axes.dims[-back] for axes in operands if len(axes) >= back]
        result.append(_meet(call, met, shape[len(shape) - back]))
    return tuple(result)


def _meet(call: Call, dims: list[Labels], size: int) -> Labels:
    full = [dim for dim in dims if len(dim) == size]
    if any(len(dim) not in (1, size) for dim in dims):
        raise UnclearError
    call.labels.freeze(*(dim for dim in dims if len(dim) != size))
    for dim in full[1:]:
        call.labels.tie(full[0], dim)
    return full[0] if full else frozen_dim(size)


def along_dimension(call: Call) -> Axes:
    """The elements along one dimension need each other."""
    x = call.first()
    call.labels.freeze(x.dims[_dim(call, len(x), "dim", "dims")])
    return elementwise(call)


def linear(call: Call) -> Axes:
    """weight: (out, in); bias: (out)."""
    x, w = call.first(), call.weight()
    call.labels.tie(x.dims[-1], w.dims[1])
    _tie_vectors(call, w.dims[0], "bias")
    call.produces(w.dims[0])
    call.sets("in_features", lambda kept: kept(w.dims[1]))
    call.sets("out_features", lambda kept: kept(w.dims[0]))
    return Axes((*x.dims[:-1], w.dims[0]))


def _tie_vectors(call: Call, labels: Labels, *names: str) -> None:
    for name in names:
        axes = call.parameter(name)
        if axes is not None:
            call.labels.tie(axes.dims[0], labels)


def conv(call: Call) -> Axes:
    """weight: (out, in / groups, places …); every input channel its own group is depthwise."""
    x, w = call.first(), call.weight()
    channel = len(x) - len(w) + 1
    incoming, groups = x.dims[channel], call.argument("groups") or 1
    if groups > 1:
        _tie_depthwise(call, incoming, w, groups)
    else:
        call.labels.tie(incoming, w.dims[1])
        call.produces(w.dims[0])
    return _convolved(call, x, channel, incoming, w.dims[0])


def _tie_depthwise(call: Call, incoming: Labels, w: Axes, groups: int) -> None:
    is_depthwise = groups == len(incoming) == len(w.dims[0]) and call.module is not None
    if not is_depthwise:
        raise UnclearError
    call.labels.freeze(w.dims[1])
    call.labels.tie(incoming, w.dims[0])
    call.sets("groups", lambda kept: kept(incoming))


def conv_transpose(call: Call) -> Axes:
    """weight: (in, out, places …)."""
    x, w = call.first(), call.weight()
    channel = len(x) - len(w) + 1
    if (call.argument("groups") or 1) > 1:
        raise UnclearError
    call.labels.tie(x.dims[channel], w.dims[0])
    call.produces(w.dims[1])
    return _convolved(call, x, channel, x.dims[channel], w.dims[1])


def _convolved(call: Call, x: Axes, channel: int, incoming: Labels, outgoing: Labels) -> Axes:
    call.labels.freeze(*call.weight().dims[2:])
    _tie_vectors(call, outgoing, "bias")
    call.sets("in_channels", lambda kept: kept(incoming))
    call.sets("out_channels", lambda kept: kept(outgoing))
    places = (frozen_dim(size) for size in call.shape[channel + 1 :])
    return Axes((*x.dims[:channel], outgoing, *places))


def norm_last(call: Call) -> Axes:
    """A weight for each element of the last dimensions."""
    x, module = call.first(), call.module
    if module is None:  # the function is given the sizes as well
        raise UnclearError
    count = len(module.normalized_shape)  # type: ignore[arg-type]
    last = x.dims[-count:]
    for name in ("weight", "bias"):
        axes = call.parameter(name)
        for own, dim in zip(axes.dims if axes else (), last, strict=bool(axes)):
            call.labels.tie(own, dim)
    call.sets("normalized_shape", lambda kept: tuple(kept(dim) for dim in last))
    return x


def norm_channel(call: Call) -> Axes:
    """A weight for each channel, and running statistics."""
    x = call.first()
    for name in ("weight", "bias", "running_mean", "running_var"):
        axes = call.parameter(name)
        if axes is not None and axes.shape != (1,):
            call.labels.tie(axes.dims[0], x.dims[1])
    for name in ("num_features", "num_parameters"):
        if getattr(call.module, name, 1) != 1:
            call.sets(name, lambda kept: kept(x.dims[1]))
    return x


def norm_group(call: Call) -> Axes:
    """Channels in groups: one group, or each its own; other groups would become uneven."""
    x, groups = call.first(), call.argument("num_groups")
    if call.module is None or groups not in (1, len(x.dims[1])):
        raise UnclearError
    _tie_vectors(call, x.dims[1], "weight", "bias")
    call.sets("num_channels", lambda kept: kept(x.dims[1]))
    if groups != 1:
        call.sets("num_groups", lambda kept: kept(x.dims[1]))
    return x


def embedding(call: Call) -> Axes:
    """weight: (words, features)."""
    x, w = call.first(), call.weight()
    call.labels.freeze(w.dims[0])
    call.sets("embedding_dim", lambda kept: kept(w.dims[1]))
    return Axes((*x.dims, w.dims[1]))


def places(call: Call) -> Axes:
    """Pooling: the first two dimensions stay, all others are places."""
    x, shape = call.first(), call.shape
    if len(shape) != len(x) or shape[:1] != x.shape[:1]:
        raise UnclearError
    call.labels.freeze(*x.dims[2:])
    kept = [x.dims[i] if shape[i] == x.shape[i] else frozen_dim(shape[i]) for i in (0, 1)]
    return Axes((*kept, *(frozen_dim(size) for size in shape[2:])))


def matmul(call: Call) -> Axes:
    """(…, n, k) @ (…, k, m)."""
    a, b = (call.operands() * 2)[:2]  # x @ x reads one operand
    if min(len(a), len(b)) < 2:
        raise UnclearError
    call.labels.tie(a.dims[-1], b.dims[-2])
    batch = [Axes(a.dims[:-2]), Axes(b.dims[:-2])]
    return Axes((*tie_broadcast(call, batch, call.shape[:-2]), a.dims[-2], b.dims[-1]))


def attention(call: Call) -> Axes:
    """query (…, l, e), key (…, s, e), value (…, s, v); the default scale depends on e."""
    query, key, value = (_axes(call, name) for name in ("query", "key", "value"))
    mask = call.value(call.argument("attn_mask"))
    call.labels.freeze(query.dims[-1], key.dims[-1])
    heads = [Axes(x.dims[:-2]) for x in (query, _share(query, key), _share(query, value))]
    if isinstance(mask, Axes):
        heads.append(Axes(mask.dims[:-2]))
        call.labels.freeze(*mask.dims[-2:])
    call.labels.freeze(query.dims[-2], key.dims[-2], value.dims[-2])
    return Axes((*tie_broadcast(call, heads, call.shape[:-2]), query.dims[-2], value.dims[-1]))


def _axes(call: Call, name: str) -> Axes:
    found = call.value(call.argument(name))
    if not isinstance(found, Axes):
        raise UnclearError
    return found


def _share(query: Axes, other: Axes) -> Axes:
    """Grouped queries: each head of `other` serves as many of the query's."""
    if len(other) < 3 or other.shape[-3] == query.shape[-3]:
        return other
    repeats = query.shape[-3] // other.shape[-3]
    heads = np.repeat(other.dims[-3], repeats)
    return Axes((*other.dims[:-3], heads, *other.dims[-2:]))


def reshape(call: Call) -> Axes:
    """view and reshape: the arguments are the new sizes."""
    result = regroup(call)
    call.rewrites(lambda node, kept: _write_sizes(node, result, kept))
    return result


def regroup(call: Call) -> Axes:
    """The same elements in the same order under other sizes.

    Runs of dimensions with equal products match: one dimension may become several (split), or
    several one (merge).
    """
    x = call.first()
    result: list[Labels] = []
    for old, sizes in _runs(x.dims, call.shape):
        result += _match(call, old, sizes)
    return Axes(tuple(result))


def _runs(dims: Sequence[Labels], shape: Sequence[int]) -> Iterable[tuple[list[Labels], list[int]]]:
    """The shortest runs of old dimensions and new sizes with equal products."""
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


def _match(call: Call, old: list[Labels], sizes: list[int]) -> list[Labels]:
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


def _split(call: Call, dim: Labels, sizes: list[int]) -> list[Labels]:
    """One dimension becomes several: the outermost, heads, can be removed; the others cannot."""
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


def _merge(call: Call, dims: list[Labels]) -> Labels:
    """Several dimensions become one: each index of the first that can be removed is a run."""
    free = [i for i, dim in enumerate(dims) if not call.labels.is_frozen(dim)]
    call.labels.freeze(*(dims[i] for i in free[1:]))
    axis = free[0] if free else 0
    shape = [len(dim) for dim in dims]
    index = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(dims))])
    return dims[axis][np.broadcast_to(index, shape).reshape(-1)]


def _write_sizes(node: fx.Node, result: Axes, kept: Kept) -> None:
    """Put the new sizes where the arguments give sizes as numbers."""
    first, given = node.args[0], node.args[1:]
    listed = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else None
    sizes: Sequence[Any] = given if listed is None else listed
    if len(sizes) != len(result):
        return  # view(dtype), view_as(other): no sizes
    new = [
        kept(dim) if isinstance(size, int) and size == len(dim) else size
        for size, dim in zip(sizes, result.dims, strict=True)
    ]
    node.args = (first, *new) if listed is None else (first, new)


def permute(call: Call) -> Axes:
    """Dimensions in another order."""
    x, order = call.first(), call.argument("dims")
    if not isinstance(order, tuple | list):
        raise UnclearError
    return Axes(tuple(x.dims[_integer(i) % len(x)] for i in order))


def transpose(call: Call) -> Axes:
    """Two dimensions change places."""
    x = call.first()
    a, b = (_dim(call, len(x), *names) for names in (("dim0", "axis0"), ("dim1", "axis1")))
    dims = list(x.dims)
    dims[a], dims[b] = dims[b], dims[a]
    return Axes(tuple(dims))


def expand(call: Call) -> Axes:
    """A dimension of size 1 is repeated; the arguments are the new sizes."""
    if len(call.operands()) > 1:
        return elementwise(call)
    result = Axes(tie_broadcast(call, [call.first()], call.shape))
    call.rewrites(lambda node, kept: _write_sizes(node, result, kept))
    return result


def cat(call: Call) -> Axes:
    """One after the other along a dimension."""
    parts = axes_in([call.value(n) for n in call.node.args[0]])  # type: ignore[union-attr]
    dim = _dim(call, len(parts[0]), default=0)
    return Axes(
        tuple(
            np.concatenate([p.dims[i] for p in parts])
            if i == dim
            else _meet(call, [p.dims[i] for p in parts], parts[0].shape[i])
            for i in range(len(parts[0]))
        )
    )


def stack(call: Call) -> Axes:
    """Side by side along a new dimension."""
    parts = axes_in([call.value(n) for n in call.node.args[0]])  # type: ignore[union-attr]
    dims = list(tie_broadcast(call, parts, parts[0].shape))
    dims.insert(_dim(call, len(parts[0]) + 1, default=0), frozen_dim(len(parts)))
    return Axes(tuple(dims))


def split(call: Call) -> tuple[Axes, ...]:
    """Parts along a dimension; the sizes are written out where they change."""
    x = call.first()
    dim = _dim(call, len(x), default=0)
    ends = np.cumsum([part.shape[dim] for part in axes_in(call.result)])
    labels = np.split(x.dims[dim], ends[:-1])
    call.rewrites(lambda node, kept: _write_parts(node, dim, labels, kept))
    return tuple(Axes((*x.dims[:dim], part, *x.dims[dim + 1 :])) for part in labels)


def _write_parts(node: fx.Node, dim: int, parts: list[Labels], kept: Kept) -> None:
    sizes = [kept(part) for part in parts]
    if sizes != [len(part) for part in parts]:
        node.op, node.target = "call_function", torch.split
        node.args, node.kwargs = (node.args[0], sizes, dim), {}


def unbind(call: Call) -> tuple[Axes, ...]:
    """The slices along a dimension, which is gone."""
    x = call.first()
    dim = _dim(call, len(x), default=0)
    call.labels.freeze(x.dims[dim])
    return (Axes((*x.dims[:dim], *x.dims[dim + 1 :])),) * x.shape[dim]


def getitem(call: Call) -> Any:
    """A part of a tuple, or slices of a tensor."""
    source, index = call.node.args[:2]
    value = call.value(source)
    if isinstance(value, tuple | list) and isinstance(index, int):
        return value[index]
    if value is None and not axes_in(call.result):
        return None
    if not isinstance(value, Axes):
        raise UnclearError
    return _index(call, value, index if isinstance(index, tuple) else (index,))


def _index(call: Call, x: Axes, index: tuple[Any, ...]) -> Axes:
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
    call.rewrites(lambda node, kept: _write_slices(node, slices, kept, len(x)))
    return Axes((*result, *dims))


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


def _write_slices(node: fx.Node, slices: dict[int, Labels], kept: Kept, rank: int) -> None:
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    new = list(_without_ellipsis(index, rank))
    for place, dim in slices.items():
        if kept(dim) != len(dim):
            new[place] = _moved(new[place], dim, kept)
            node.args = (node.args[0], tuple(new))


def _moved(old: slice, dim: Labels, kept: Kept) -> slice:
    start, stop, _ = old.indices(len(dim))
    return slice(kept(dim[:start]), kept(dim[: max(stop, start)]))


def reduce(call: Call) -> Axes:
    """Some dimensions are summed up, or the like: those need all their elements."""
    x, shape = call.first(), call.shape
    given = call.argument("dim", "axis")
    if given is None:
        raise UnclearError
    listed = given if isinstance(given, tuple | list) else (given,)
    gone = {_integer(i) % len(x) for i in listed}
    call.labels.freeze(*(x.dims[i] for i in gone))
    if len(shape) == len(x):
        return Axes(tuple(frozen_dim(1) if i in gone else d for i, d in enumerate(x.dims)))
    return Axes(tuple(d for i, d in enumerate(x.dims) if i not in gone))


def facts(call: Call) -> None:
    """Sizes and types; the node reads no elements."""
    if axes_in(call.result):
        raise UnclearError


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        elementwise,
        along_dimension,
        linear,
        conv,
        conv_transpose,
        norm_last,
        norm_channel,
        norm_group,
        embedding,
        places,
        matmul,
        attention,
        reshape,
        regroup,
        permute,
        transpose,
        expand,
        cat,
        stack,
        split,
        unbind,
        getitem,
        reduce,
        facts,
    )
}
"""The rules by their names in the op table."""
