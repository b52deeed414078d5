"""Layout of a tensor along one mesh axis: replicated, split along a dimension, or partial sums.

A layout is a short string, so that plans are plain data: "R" (replicated), "S0", "S1" … (split
evenly along that dimension), "P" (partial: the tensor is the sum of the parts on the devices).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Layout = str
Shape = tuple[int, ...]

REPLICATE: Layout = "R"
PARTIAL: Layout = "P"


def shard(dim: int) -> Layout:
    """Return the layout that splits along `dim`, counted from the front.

    >>> shard(1)
    'S1'
    """
    return f"S{dim}"


def sharded_dim(layout: Layout) -> int | None:
    """Return the dimension that a layout splits, or None."""
    return int(layout[1:]) if layout.startswith("S") else None


class Use(NamedTuple):
    """Layout in which an operand is read, and layout of the gradient that returns."""

    layout: Layout
    gradient: Layout


def use_of(layout: Layout, is_split: bool) -> Use:
    """Return how a node reads an operand; `is_split`: the devices share the node's work.

    If the work is shared and the operand is replicated, each device computes the part of the
    gradient that belongs to its share of the work: the gradient is their sum.

    >>> use_of("R", is_split=True), use_of("S0", is_split=True), use_of("P", is_split=True)
    (Use(layout='R', gradient='P'), Use(layout='S0', gradient='S0'), Use(layout='P', gradient='R'))
    """
    gradients = {REPLICATE: PARTIAL if is_split else REPLICATE, PARTIAL: REPLICATE}
    return Use(layout, gradients.get(layout, layout))


def gradient_of(layout: Layout) -> Layout:
    """Return the layout that the gradient of a value needs: every term of a sum has the whole."""
    return REPLICATE if layout == PARTIAL else layout


def local_shape(shape: Sequence[int], layouts: Iterable[tuple[Layout, int]]) -> Shape:
    """Return the part of `shape` on one device; `layouts`: layout and devices per mesh axis.

    >>> local_shape((8, 6), [("S0", 2), ("S1", 3)])
    (4, 2)
    """
    sizes = list(shape)
    for layout, devices in layouts:
        if (dim := sharded_dim(layout)) is not None:
            sizes[dim] //= devices
    return tuple(sizes)


def whole_shape(local: Sequence[int], layouts: Iterable[tuple[Layout, int]]) -> Shape:
    """Return the shape of the whole tensor; the inverse of `local_shape`.

    >>> whole_shape((4, 2), [("S0", 2), ("S1", 3)])
    (8, 6)
    """
    sizes = list(local)
    for layout, devices in layouts:
        if (dim := sharded_dim(layout)) is not None:
            sizes[dim] *= devices
    return tuple(sizes)
