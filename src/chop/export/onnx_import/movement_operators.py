"""Operators that move, create and select elements."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.export.onnx_import.call import Call, check_made, operator, register_operators
from chop.export.onnx_import.host_values import ArangeValue, Ints, as_tensor, is_host
from chop.export.onnx_import.onnx_file import TYPES, OnnxConstant
from chop.ir.trace.tracked import plain

FAR = (1 << 31) - 2
"""End of a slice from which on it means the end of the tensor."""
MOST_DIMENSIONS = 8
"""Length of the longest vector of equal numbers that is taken as part of a shape."""


@operator("Constant")
def _constant(call: Call) -> Any:
    attributes = call.node.attributes
    if isinstance(attributes.get("value"), OnnxConstant):
        return attributes["value"].values
    for name, kind in (("int", torch.int64), ("float", torch.float32)):
        for key in (f"value_{name}", f"value_{name}s"):
            if key in attributes:
                return torch.tensor(attributes[key], dtype=kind)
    raise ValueError("it has no value that is read: a tensor, or numbers")


@operator("ConstantOfShape")
def _constant_of_shape(call: Call) -> Any:
    sizes = call.numbers(0)
    check_made(math.prod(sizes))
    value = call.attribute("value")
    fill = value.values.reshape(-1)[0].item() if isinstance(value, OnnxConstant) else 0.0
    kind = value.values.dtype if isinstance(value, OnnxConstant) else torch.float32
    is_rank = len(sizes) == 1 and type(sizes[0]) is int and sizes[0] <= MOST_DIMENSIONS
    if call.is_host(0) and is_rank and kind == torch.int64:
        return Ints([fill] * sizes[0])  # part of a shape
    return torch.full(sizes, fill, dtype=kind)


@operator("Shape")
def _shape(call: Call) -> Any:
    start, end = call.attribute("start", 0), call.attribute("end")
    value = call.value(0)
    if is_host(value):
        sizes: Any = [len(value)] if isinstance(value, Ints) else []
    else:
        sizes = as_tensor(value).shape
    if call.scope.is_folding:
        return torch.tensor(list(sizes[start:end]), dtype=torch.int64)
    return Ints(sizes[start:end])


@operator("Size")
def _size(call: Call) -> Any:
    value = call.value(0)
    count = len(value) if isinstance(value, Ints) else call.tensor(0).numel()
    return torch.tensor(count) if call.scope.is_folding else count


@operator("Reshape")
def _reshape(call: Call) -> Any:
    sizes = call.option("shape", 1)
    if call.is_host(0):
        numbers = call.numbers(0)
        if not sizes and len(numbers) == 1:
            return numbers[0]
        is_vector = len(sizes) == 1 and sizes[0] in (-1, len(numbers))
        return Ints(numbers) if is_vector else as_tensor(Ints(numbers)).reshape(sizes)
    x = call.tensor(0)
    if not call.attribute("allowzero", 0):
        sizes = [x.shape[i] if type(s) is int and s == 0 else s for i, s in enumerate(sizes)]
    return x.reshape(sizes)


@operator("Flatten")
def _flatten(call: Call) -> Any:
    x, axis = call.tensor(0), call.attribute("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    if axis == 1 and x.dim() > 1:
        return torch.flatten(x, 1)
    if axis == 0 or axis == x.dim():
        return x.reshape([1, -1] if axis == 0 else [-1, 1])
    return x.flatten(axis).flatten(0, axis - 1)


@operator("Squeeze")
def _squeeze(call: Call) -> Any:
    axes = call.option("axes", 1)
    if call.is_host(0):
        numbers = call.numbers_or_one(0)
        return numbers[0] if isinstance(numbers, Ints) and len(numbers) == 1 else numbers
    x = call.tensor(0)
    axes = [i for i, s in enumerate(x.shape) if s == 1] if axes is None else axes
    for axis in sorted((a % x.dim() for a in axes), reverse=True):
        x = x.squeeze(axis)
    return x


@operator("Unsqueeze")
def _unsqueeze(call: Call) -> Any:
    axes = call.option("axes", 1, [])
    if call.is_host(0):
        numbers = call.numbers_or_one(0)
        if not isinstance(numbers, Ints) and len(axes) == 1:
            return Ints([numbers])
    x = call.tensor(0)
    rank = x.dim() + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


@operator("Transpose")
def _transpose(call: Call) -> Any:
    x = call.tensor(0)
    return x.permute(call.attribute("perm", list(range(x.dim()))[::-1]))


@operator("Concat")
def _concat(call: Call) -> Any:
    hosts = call.hosts()
    if hosts is not None:
        return Ints(v for h in hosts for v in (h if isinstance(h, Ints) else [h]))
    return torch.cat([call.tensor(i) for i in range(call.count)], call.attribute("axis", 0))


@operator("Expand")
def _expand(call: Call) -> Any:
    x, sizes = call.tensor(0), call.numbers(1)
    check_made(math.prod(max(plain(s), 1) for s in sizes))
    extra = x.dim() - len(sizes)
    sizes = [-1] * extra + sizes if extra > 0 else sizes
    first = len(sizes) - x.dim()
    return x.expand(
        [-1 if i >= first and type(s) is int and s == 1 else s for i, s in enumerate(sizes)]
    )


@operator("Tile")
def _tile(call: Call) -> Any:
    x, times = call.tensor(0), call.numbers(1)
    check_made(math.prod(times) * max(x.numel(), 1))
    return x.repeat(times)


@operator("Range")
def _range(call: Call) -> Any:
    start, limit, delta = (call.number(i) for i in range(3))
    check_made(abs((plain(limit) - plain(start)) / plain(delta)))
    kind = call.dtype_of(0) or torch.int64
    is_float = isinstance(start, float) or isinstance(limit, float) or isinstance(delta, float)
    kind = torch.float32 if is_float and not kind.is_floating_point else kind
    span = ArangeValue(start, limit, delta, kind)
    return span if kind == torch.int64 and not call.scope.is_folding else span.tensor()


@operator("EyeLike")
def _eye_like(call: Call) -> Any:
    x, shift = call.tensor(0), call.attribute("k", 0)
    number = call.attribute("dtype")
    kind = x.dtype if number is None else TYPES[call.scope.kind_of(number)]
    rows, columns = torch.arange(x.shape[0]), torch.arange(x.shape[1])
    return (rows[:, None] + shift == columns).to(kind)


@operator("Slice")
def _slice(call: Call) -> Any:
    starts, ends = call.option("starts", 1), call.option("ends", 2)
    axes = call.option("axes", 3) or list(range(len(starts)))
    steps = call.option("steps", 4) or [1] * len(starts)
    if call.is_host(0):
        return Ints(call.numbers(0)[slice(starts[0], _end(ends[0]), steps[0])])
    x = call.tensor(0)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        x = _sliced(x, axis % x.dim(), start, _end(end), step)
    return x


def _end(end: Any) -> Any:
    return None if type(end) is int and end >= FAR else end


def _sliced(x: Tensor, axis: int, start: Any, end: Any, step: int) -> Tensor:
    if step > 0:
        if type(start) is int and start == 0 and end is None and step == 1:
            return x
        return x[(*[slice(None)] * axis, slice(start, end, None if step == 1 else step))]
    size = int(x.shape[axis])
    end = None if type(end) is int and end < -FAR else end
    start = min(start, size - 1) if start >= 0 else start
    places = range(size)[slice(start, end, step)]
    if not places:
        return x.narrow(axis, 0, 0)
    return x.index_select(axis, torch.arange(places.start, places.stop, places.step))


@operator("Split")
def _split(call: Call) -> Any:
    x, axis = call.tensor(0), call.attribute("axis", 0)
    sizes = call.option("split", 1)
    if sizes is None:
        count = call.attribute("num_outputs", len(call.node.outputs))
        return tuple(torch.split(x, -(-x.shape[axis] // count), axis))
    return tuple(torch.split(x, sizes, axis))


def gathered(call: Call) -> Any:
    """Run a `Gather` that is no embedding."""
    axis = call.attribute("axis", 0)
    place: Any = call.host(1)
    if call.is_host(0):
        numbers = call.numbers(0)
        if isinstance(place, Ints):
            return Ints(numbers[i] for i in place)
        if place is not None:
            return numbers[place]
    x = call.tensor(0)
    if place is not None and not isinstance(place, Ints):
        return x.select(axis, place)
    before: Any = (*[slice(None)] * (axis % x.dim()), call.tensor(1))
    return x[before]


def _places(places: Tensor, batch: int) -> tuple[Tensor, ...]:
    """Return the indices of each dimension in `places`, after `batch` shared dimensions."""
    own = places.unbind(-1)
    shared = []
    for i in range(batch):
        shape = [1] * (places.dim() - 1)
        shape[i] = -1
        shared.append(torch.arange(places.shape[i]).reshape(shape))
    return (*shared, *own)


REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
"""Reduction of torch for each of ONNX."""


@operator("ScatterND")
def _scatter_nd(call: Call) -> Any:
    how = call.attribute("reduction", "none")
    x, places, updates = (call.tensor(i) for i in range(3))
    if how in ("none", "add"):
        return torch.index_put(x, _places(places, 0), updates, accumulate=how == "add")
    depth = places.shape[-1]
    inner = [int(s) for s in x.shape[depth:]]
    sizes = [int(s) for s in x.shape[:depth]]
    strides = [math.prod(sizes[i + 1 :]) for i in range(depth)]
    lengths = torch.tensor(sizes)
    rows = (torch.where(places < 0, places + lengths, places) * torch.tensor(strides)).sum(-1)
    rows = rows.reshape(-1, 1).expand(-1, math.prod(inner))
    flat = x.reshape(math.prod(sizes), -1)
    values = updates.reshape(rows.shape)
    return torch.scatter_reduce(flat, 0, rows, values, REDUCTIONS[how]).reshape(x.shape)


@operator("ScatterElements", "Scatter")
def _scatter_elements(call: Call) -> Any:
    how = call.attribute("reduction", "none")
    x, places, updates = (call.tensor(i) for i in range(3))
    axis = call.attribute("axis", 0)
    places = torch.where(places < 0, places + x.shape[axis], places)
    if how == "none":
        return torch.scatter(x, axis, places, updates)
    return torch.scatter_reduce(x, axis, places, updates, REDUCTIONS[how])


@operator("GatherElements")
def _gather_elements(call: Call) -> Any:
    x, places, axis = call.tensor(0), call.tensor(1), call.attribute("axis", 0)
    places = torch.where(places < 0, places + x.shape[axis], places)
    return torch.gather(x, axis, places.long())


@operator("OneHot")
def _one_hot(call: Call) -> Any:
    places, depth, values = call.tensor(0), call.number(1), call.tensor(2)
    check_made(depth * max(places.numel(), 1))
    axis = call.attribute("axis", -1)
    whole = places.long()
    whole = torch.where(whole < 0, whole + depth, whole)
    axis = axis if axis >= 0 else axis + whole.dim() + 1
    rows = torch.arange(depth).reshape([-1 if i == axis else 1 for i in range(whole.dim() + 1)])
    return torch.where(whole.unsqueeze(axis) == rows, values[1], values[0])


@operator("Pad")
def _pad(call: Call) -> Any:
    x, pads = call.tensor(0), call.option("pads", 1)
    mode = call.attribute("mode", "constant")
    value = call.operand(2) if call.given(2) else call.attribute("value", 0.0)
    value = value.item() if isinstance(value, Tensor) else value
    axes = call.option("axes", 3) or list(range(x.dim()))
    half = len(pads) // 2
    by_axis = {a % x.dim(): (pads[i], pads[i + half]) for i, a in enumerate(axes)}
    first = 0 if mode == "constant" else min(a for a, p in by_axis.items() if any(p))
    order = [by_axis.get(a, (0, 0)) for a in range(x.dim() - 1, first - 1, -1)]
    check_made(math.prod(s + sum(by_axis.get(i, (0, 0))) for i, s in enumerate(x.shape)))
    flat = [p for pair in order for p in pair]
    names = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    return F.pad(x, flat, names[mode], *([value] if mode == "constant" else []))


@operator("DepthToSpace")
def _depth_to_space(call: Call) -> Any:
    x, size = call.tensor(0), call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, size)
    n, c, h, w = x.shape
    split = x.reshape(n, size, size, c // size**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return split.reshape(n, c // size**2, h * size, w * size)


@operator("SpaceToDepth")
def _space_to_depth(call: Call) -> Any:
    x, size = call.tensor(0), call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "CRD":
        return F.pixel_unshuffle(x, size)
    n, c, h, w = x.shape
    split = x.reshape(n, c, h // size, size, w // size, size).permute(0, 3, 5, 1, 2, 4)
    return split.reshape(n, c * size**2, h // size, w // size)


@operator("SplitToSequence")
def _split_to_sequence(call: Call) -> Any:
    x, axis = call.tensor(0), call.attribute("axis", 0)
    if not call.given(1):
        parts = torch.split(x, 1, axis)
        return [p if call.attribute("keepdims", 1) else p.squeeze(axis) for p in parts]
    sizes: Any = call.numbers_or_one(1)
    return list(torch.split(x, list(sizes) if isinstance(sizes, Ints) else sizes, axis))


register_operators(
    {
        "ConcatFromSequence": lambda call: (
            torch.stack if call.attribute("new_axis", 0) else torch.cat
        )(list(call.value(0)), call.attribute("axis", 0)),
        "GatherND": lambda call: call.tensor(0)[
            _places(call.tensor(1), call.attribute("batch_dims", 0))
        ],
        "NonZero": lambda call: torch.nonzero(call.tensor(0)).t(),
        "Trilu": lambda call: (torch.triu if call.attribute("upper", 1) else torch.tril)(
            call.tensor(0), call.number(1) if call.given(1) else 0
        ),
    }
)
