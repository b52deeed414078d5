"""Cost to convert a tensor between layouts on a mesh of several axes, for many pairs at once.

A joint layout has one layout per mesh axis. A conversion runs at most one collective per axis.
Collectives that shrink the local part run first and gathers run last, so that each collective
handles as few bytes as possible. Of two equal collectives, the one on the later axis runs first.

Two axes can split the same dimension. The later axis then splits the parts of the earlier one. A
conversion that changes the earlier axis alone also gathers along the later axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chop.distributed.cost import COLLECTIVES
from chop.distributed.layouts import PARTIAL, REPLICATE, Layout, sharded_dim
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
    return np.asarray(_axis_shares(codes, mesh).prod(axis=-1))


def _axis_shares(codes: Codes, mesh: Mesh) -> np.ndarray:
    return np.where(codes >= FIRST_SPLIT, 1.0 / np.array(mesh.shape), 1.0)


def conversion_seconds(before: Codes, after: Codes, tensors: Tensors, mesh: Mesh) -> np.ndarray:
    """Return the seconds of each conversion: rows are `before`, columns are `after`."""
    _, seconds, _ = _priced(before[:, None, :], after[None, :, :], tensors, mesh)
    return np.asarray(seconds.sum(axis=-1))


def paired_seconds(before: Codes, after: Codes, tensors: Tensors, mesh: Mesh) -> np.ndarray:
    """Return the seconds of each conversion of `before[i]` to `after[i]`."""
    return np.asarray(_priced(before, after, tensors, mesh)[1].sum(axis=-1))


def collectives_of(before: Codes, after: Codes, tensors: Tensors, mesh: Mesh) -> list[Collective]:
    """Return the collectives of one conversion, one per tensor, in the order in which they run."""
    kinds, seconds, sent = (each[0] for each in _priced(before, after, tensors, mesh))
    axes = sorted(np.flatnonzero(kinds).tolist(), key=lambda a: (kinds[a], -a))
    share = 1.0 / tensors.number
    return [
        Collective(
            axis, KINDS[kinds[axis]], float(seconds[axis] * share), float(sent[axis] * share)
        )
        for axis in axes
        for _ in range(tensors.number)
    ]


def _priced(
    before: Codes, after: Codes, tensors: Tensors, mesh: Mesh
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return kind, seconds and bytes sent per axis (last dimension) of each conversion."""
    before, after = np.broadcast_arrays(before, after)
    devices = np.array(mesh.shape)
    axes = range(len(devices))
    kinds = np.where(devices > 1, _kinds(before, after), 0)
    old, new = _axis_shares(before, mesh), _axis_shares(after, mesh)
    rank = kinds * len(devices) - np.arange(len(devices))
    seconds, sent = np.zeros(kinds.shape), np.zeros(kinds.shape)
    for a in axes:
        others = [b for b in axes if b != a]
        size = np.full(kinds.shape[:-1], tensors.size)
        for b in others:
            size = size * np.where(rank[..., b] < rank[..., a], new[..., b], old[..., b])
        kind = kinds[..., a]
        size = np.where(kind == _EXCHANGE, size / devices[a], size)
        link, passes = mesh.axis(a), PASSES[kind]
        sent[..., a] = passes * size * (devices[a] - 1) / devices[a]
        waits = passes * (devices[a] - 1) * link.latency * tensors.number
        seconds[..., a] = waits + sent[..., a] / link.bandwidth
    return kinds, seconds, sent


def _kinds(before: Codes, after: Codes) -> np.ndarray:
    """Return the collective of each axis, as an index of `KINDS`."""
    was_split, is_split = before >= FIRST_SPLIT, after >= FIRST_SPLIT
    changes = (before != after) & (before != WHOLE_CODE)
    summed = np.where(is_split, KINDS.index("reduce_scatter"), KINDS.index("all_reduce"))
    moved = np.where(is_split, _EXCHANGE, _GATHER)
    kinds = np.where(changes, np.where(was_split, moved, summed), 0)
    for late in range(before.shape[-1]):
        for early in range(late):
            kinds[..., late] = np.where(
                _is_reordered(before, after, early, late), _GATHER, kinds[..., late]
            )
    return kinds


def _is_reordered(before: Codes, after: Codes, early: int, late: int) -> np.ndarray:
    """Return where `early` changes and `late` stays, and both split the same dimension."""
    stays = (before[..., late] == after[..., late]) & (before[..., late] >= FIRST_SPLIT)
    changes = before[..., early] != after[..., early]
    nested = (before[..., early] == before[..., late]) | (after[..., early] == after[..., late])
    return np.asarray(stays & changes & nested)
