"""Cost to convert a tensor between layouts on a mesh of several axes, for many pairs at once.

A joint layout has one layout per mesh axis. A conversion runs at most one collective per axis.
Collectives that shrink the local part run first and gathers run last, so that each collective
handles as few bytes as possible.

Two axes can split the same dimension. The later axis then splits the parts of the earlier one, so
the earlier one can change only while the later one does not split it. Where the order above breaks
this rule, gathers run first, also along a later axis that has the same layout before and after.

`conversion_steps` defines the order. `chop.distributed.redistribution` runs exactly these steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chop.distributed.cost import COLLECTIVES, collective
from chop.distributed.layouts import PARTIAL, REPLICATE, Layout, shard, sharded_dim
from chop.distributed.mesh import Mesh

Codes = np.ndarray
"""Joint layouts as integers: one row per joint layout, one column per mesh axis."""
WHOLE_CODE, PARTIAL_CODE, FIRST_SPLIT = 0, 1, 2
"""Codes of "R" and "P"; dimension d split is FIRST_SPLIT + d."""
KINDS = ("", "reduce_scatter", "all_to_all", "all_reduce", "all_gather")
"""Collectives in the order in which they run; "" needs no communication."""
PASSES = np.array([COLLECTIVES.get(kind, 0.0) for kind in KINDS])
_EXCHANGE, _GATHER = KINDS.index("all_to_all"), KINDS.index("all_gather")


class Tensors(NamedTuple):
    """Whole bytes and number of the tensors that one value consists of."""

    size: float
    number: int


class Collective(NamedTuple):
    """One collective of a conversion: mesh axis, name, seconds, and bytes sent per device."""

    axis: int
    name: str
    seconds: float
    sent: float


def encode(layouts: Sequence[Sequence[Layout]]) -> Codes:
    """Return joint layouts as codes.

    >>> encode([("R", "S1"), ("P", "S0")]).tolist()
    [[0, 3], [1, 2]]
    """
    return np.array([[_code(layout) for layout in each] for each in layouts], dtype=np.int64)


def _code(layout: Layout) -> int:
    dim = sharded_dim(layout)
    return {REPLICATE: WHOLE_CODE, PARTIAL: PARTIAL_CODE}.get(layout, FIRST_SPLIT + (dim or 0))


def shares(codes: Codes, mesh: Mesh) -> np.ndarray:
    """Return the part of a tensor on one device, for each joint layout.

    >>> shares(encode([("S0", "R"), ("S0", "S1")]), Mesh((2, 4))).tolist()
    [0.5, 0.125]
    """
    return np.asarray(_axis_shares(codes, mesh.shape).prod(axis=-1))


def _axis_shares(codes: Codes, shape: Sequence[int]) -> np.ndarray:
    return np.where(codes >= FIRST_SPLIT, 1.0 / np.array(shape), 1.0)


def conversion_seconds(before: Codes, after: Codes, tensors: Tensors, mesh: Mesh) -> np.ndarray:
    """Return the seconds of each conversion: rows are `before`, columns are `after`."""
    _, seconds, _ = _priced(before[:, None, :], after[None, :, :], tensors, mesh)
    return np.asarray(seconds.sum(axis=-1))


def paired_seconds(before: Codes, after: Codes, tensors: Tensors, mesh: Mesh) -> np.ndarray:
    """Return the seconds of each conversion of `before[i]` to `after[i]`."""
    return np.asarray(_priced(before, after, tensors, mesh)[1].sum(axis=-1))


class LayoutStep(NamedTuple):
    """Change of the layout along one mesh axis."""

    axis: int
    before: Layout
    after: Layout

    @property
    def kind(self) -> str:
        """Collective that it needs; empty for none."""
        return collective(self.before, self.after) or ""


@functools.cache
def conversion_steps(
    before: tuple[Layout, ...], after: tuple[Layout, ...], shape: tuple[int, ...]
) -> tuple[LayoutStep, ...]:
    """Return the steps of a conversion in order; steps without a collective are local.

    A sum that is left to be added is the last: until then it is whole.

    >>> conversion_steps(("S0", "R"), ("R", "S1"), (2, 2))
    (LayoutStep(axis=1, before='R', after='S1'), LayoutStep(axis=0, before='S0', after='R'))
    >>> [step.axis for step in conversion_steps(("S0", "S0"), ("R", "S0"), (2, 2))]
    [1, 0, 1]
    """
    targets = [REPLICATE if a == PARTIAL != b else a for b, a in zip(before, after, strict=True)]
    steps = _shrinking_first(before, targets)
    return tuple(steps if _is_nested(steps, before, shape) else _gathers_first(before, targets))


def _shrinking_first(before: Sequence[Layout], after: Sequence[Layout]) -> list[LayoutStep]:
    """Return one step per axis that changes: those that shrink the local part first."""
    changes = [LayoutStep(i, *pair) for i, pair in enumerate(zip(before, after, strict=True))]

    def place(step: LayoutStep) -> tuple[int, int]:
        kind = KINDS.index(step.kind)
        return kind, step.axis if sharded_dim(step.before) is None else -step.axis

    return sorted((step for step in changes if step.before != step.after), key=place)


def _is_nested(steps: Sequence[LayoutStep], before: Sequence[Layout], shape: Sequence[int]) -> bool:
    """Return True if no axis changes its split of a dimension that a later axis splits, too."""
    layouts = list(before)
    for step in steps:
        later = [a for a in range(step.axis + 1, len(shape)) if shape[a] > 1]
        dims = {sharded_dim(layout) for layout in step[1:]} - {None}
        if shape[step.axis] > 1 and any(sharded_dim(layouts[a]) in dims for a in later):
            return False
        layouts[step.axis] = step.after
    return True


def _gathers_first(before: Sequence[Layout], after: Sequence[Layout]) -> list[LayoutStep]:
    """Return steps that are right for all layouts: gather, then add up and divide."""
    axes = range(len(before))
    gathered = [a for a in axes if _is_gathered(before, after, a)]
    now = [REPLICATE if a in gathered else before[a] for a in axes]
    steps = [LayoutStep(axis, before[axis], REPLICATE) for axis in reversed(gathered)]
    return steps + [LayoutStep(a, now[a], after[a]) for a in axes if now[a] != after[a]]


def _is_gathered(before: Sequence[Layout], after: Sequence[Layout], axis: int) -> bool:
    """Return True if a split changes, or that of the same dimension along an earlier axis."""
    if sharded_dim(before[axis]) is None:
        return False
    return before[axis] != after[axis] or any(
        before[early] != after[early] and before[axis] in (before[early], after[early])
        for early in range(axis)
    )


def collectives_of(before: Codes, after: Codes, tensors: Tensors, mesh: Mesh) -> list[Collective]:
    """Return the collectives of one conversion, one per tensor, in the order in which they run."""
    kinds, seconds, sent = (each[0] for each in _priced(before, after, tensors, mesh))
    pair = _layouts(before[0]), _layouts(after[0])
    steps = conversion_steps(*pair, mesh.shape)
    axes = [step.axis for step in steps if step.kind and kinds[step.axis]]
    share = 1.0 / tensors.number
    return [
        Collective(
            axis, KINDS[kinds[axis]], float(seconds[axis] * share), float(sent[axis] * share)
        )
        for axis in axes
        for _ in range(tensors.number)
    ]


def _layouts(codes: Codes) -> tuple[Layout, ...]:
    return tuple(layout_of(code) for code in codes.tolist())


def layout_of(code: int) -> Layout:
    """Return the layout of a code.

    >>> [layout_of(code) for code in (0, 1, 2, 3)]
    ['R', 'P', 'S0', 'S1']
    """
    if code >= FIRST_SPLIT:
        return shard(code - FIRST_SPLIT)
    return PARTIAL if code == PARTIAL_CODE else REPLICATE


def _priced(
    before: Codes, after: Codes, tensors: Tensors, mesh: Mesh
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return kind, seconds and bytes sent per axis (last dimension) of each conversion."""
    kinds, parts = _collective_parts(before, after, mesh)
    devices = np.array(mesh.shape)
    links = [mesh.axis(axis) for axis in range(len(devices))]
    passes = PASSES[kinds]
    sent = passes * parts * tensors.size * (devices - 1) / devices
    latency = np.array([link.latency for link in links])
    waits = passes * (devices - 1) * latency * tensors.number
    return kinds, waits + sent / np.array([link.bandwidth for link in links]), sent


def _collective_parts(before: Codes, after: Codes, mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
    """Return the kind of each axis' collective, and the part of a tensor that it runs on."""
    tables = (before.shape, before.tobytes()), (after.shape, after.tobytes())
    return _parts_of(*tables, mesh.shape)


@functools.lru_cache(maxsize=256)
def _parts_of(
    first: tuple[tuple[int, ...], bytes],
    last: tuple[tuple[int, ...], bytes],
    mesh: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Return `_collective_parts` of layouts as shape and bytes."""
    before, after = np.broadcast_arrays(
        *(np.frombuffer(data, dtype=np.int64).reshape(shape) for shape, data in (first, last))
    )
    devices = np.array(mesh)
    axes = range(len(mesh))
    kinds = np.where(devices > 1, _kinds(before, after), 0)
    old, new = _axis_shares(before, mesh), _axis_shares(after, mesh)
    order = np.arange(len(mesh)) * np.where(before >= FIRST_SPLIT, -1, 1)
    rank = kinds * 2 * len(mesh) + order
    parts = np.zeros(kinds.shape)
    for a in axes:
        part = np.ones(kinds.shape[:-1])
        for b in (b for b in axes if b != a):
            part = part * np.where(rank[..., b] < rank[..., a], new[..., b], old[..., b])
        parts[..., a] = np.where(kinds[..., a] == _EXCHANGE, part / devices[a], part)
    for place in zip(*np.nonzero(_meet(before, after, devices)), strict=True):
        kinds[place], parts[place] = _of_steps(
            tuple(before[place].tolist()), tuple(after[place].tolist()), mesh
        )
    return kinds, parts


def _meet(before: Codes, after: Codes, devices: np.ndarray) -> np.ndarray:
    """Return where two axes split the same dimension, before or after, and one changes."""
    result = np.zeros(before.shape[:-1], dtype=bool)
    changes = before != after
    for late in range(len(devices)):
        for early in range(late):
            for one in (before[..., early], after[..., early]):
                both = (one == before[..., late]) | (one == after[..., late])
                result |= both & (one >= FIRST_SPLIT) & (changes[..., early] | changes[..., late])
    return result


@functools.cache
def _of_steps(
    before: tuple[int, ...], after: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the kind of each axis' collective, and the part it runs on, step by step."""
    kinds, parts = [0] * len(shape), [0.0] * len(shape)
    layouts = [layout_of(code) for code in before]
    goal = tuple(layout_of(code) for code in after)
    for axis, old, new in conversion_steps(tuple(layouts), goal, shape):
        others = [
            n for a, n in enumerate(shape) if a != axis and sharded_dim(layouts[a]) is not None
        ]
        kind = KINDS.index(LayoutStep(axis, old, new).kind)
        if kind and shape[axis] > 1:
            kinds[axis] = kind
            parts[axis] = 1 / math.prod(others) / (shape[axis] if kind == _EXCHANGE else 1)
        layouts[axis] = new
    return tuple(kinds), tuple(parts)


def _kinds(before: Codes, after: Codes) -> np.ndarray:
    """Return the collective of each axis, as an index of `KINDS`."""
    was_split, is_split = before >= FIRST_SPLIT, after >= FIRST_SPLIT
    changes = (before != after) & (before != WHOLE_CODE)
    summed = np.where(is_split, KINDS.index("reduce_scatter"), KINDS.index("all_reduce"))
    moved = np.where(is_split, _EXCHANGE, _GATHER)
    return np.where(changes, np.where(was_split, moved, summed), 0)
