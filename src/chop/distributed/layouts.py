"""How a tensor lies on one axis of a mesh: whole everywhere, split along a dimension, or in sums.

A layout is a short string, so that plans are plain data: "R" (replicated), "S0", "S1" … (split
evenly along that dimension), "P" (partial: the tensor is the sum of what the devices hold).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Layout = str
Shape = tuple[int, ...]

REPLICATE: Layout = "R"
PARTIAL: Layout = "P"


def shard(dim: int) -> Layout:
    """Split along `dim`, counted from the front.

    >>> shard(1)
    'S1'
    """
    return f"S{dim}"


def sharded_dim(layout: Layout) -> int | None:
    """The dimension a layout splits; None where it splits none."""
    return int(layout[1:]) if layout.startswith("S") else None


class Use(NamedTuple):
    """The layout an operand is read in, and the one its gradient comes back in."""

    layout: Layout
    gradient: Layout


def use_of(layout: Layout, is_split: bool) -> Use:
    """How a node reads an operand; `is_split` where the devices share the node's work.

    Shared work reads a whole operand on every device, and each device knows the part of its
    gradient that its share of the work gives: the gradient is their sum.

    >>> use_of("R", is_split=True), use_of("S0", is_split=True), use_of("P", is_split=True)
    (Use(layout='R', gradient='P'), Use(layout='S0', gradient='S0'), Use(layout='P', gradient='R'))
    """
    gradients = {REPLICATE: PARTIAL if is_split else REPLICATE, PARTIAL: REPLICATE}
    return Use(layout, gradients.get(layout, layout))


def gradient_of(layout: Layout) -> Layout:
    """The layout the gradient of a value must arrive in: every term of a sum has the whole."""
    return REPLICATE if layout == PARTIAL else layout


def local_shape(shape: Sequence[int], layouts: Iterable[tuple[Layout, int]]) -> Shape:
    """The part of `shape` one device holds, given the layout and size of each mesh axis.

    >>> local_shape((8, 6), [("S0", 2), ("S1", 3)])
    (4, 2)
    """
    sizes = list(shape)
    for layout, devices in layouts:
        dim = sharded_dim(layout)
        if dim is not None:
            sizes[dim] //= devices
    return tuple(sizes)


def whole_shape(local: Sequence[int], layouts: Iterable[tuple[Layout, int]]) -> Shape:
    """The shape of a tensor of which one device holds `local`.

    >>> whole_shape((4, 2), [("S0", 2), ("S1", 3)])
    (8, 6)
    """
    sizes = list(local)
    for layout, devices in layouts:
        dim = sharded_dim(layout)
        if dim is not None:
            sizes[dim] *= devices
    return tuple(sizes)
