"""Cost model: seconds of arithmetic, seconds of communication, bytes of memory.

Communication follows the alpha-beta model on a ring of n devices: each of the n − 1 steps costs
the latency (alpha) and sends 1/n of the tensor at the link's bandwidth (beta). Arithmetic follows
the roofline: the larger of the time for the operations and the time to move the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from chop.distributed.layouts import PARTIAL, REPLICATE, Layout, Use, gradient_of, sharded_dim
from chop.distributed.mesh import Axis, Mesh

TRAINING_WORK = 3
"""Work of a training step relative to forward: forward once, backward for operands and weights."""
TRAINING_COPIES = 4
"""Tensors per parameter in training: itself, its gradient, and the two moments of Adam."""

COLLECTIVES: Mapping[str, float] = {
    "all_gather": 1.0,
    "reduce_scatter": 1.0,
    "all_reduce": 2.0,
    "all_to_all": 1.0,
}
"""Passes around the ring per collective."""


def collective(before: Layout, after: Layout) -> str | None:
    """Return the collective that converts one layout into another, or None if none is needed.

    >>> collective("P", "R"), collective("P", "S0"), collective("S0", "S1"), collective("R", "S0")
    ('all_reduce', 'reduce_scatter', 'all_to_all', None)
    """
    if before in (after, REPLICATE):
        return None
    if before == PARTIAL:
        return "all_reduce" if after == REPLICATE else "reduce_scatter"
    return "all_to_all" if sharded_dim(after) is not None else "all_gather"


def collective_bytes(name: str, size: int, axis: Axis) -> int:
    """Return the bytes that each device sends in a collective on a whole tensor of `size` bytes."""
    share = size // axis.devices if name == "all_to_all" else size
    return int(COLLECTIVES[name] * share * (axis.devices - 1) / axis.devices)


def collective_seconds(name: str, size: int, axis: Axis) -> float:
    """Return the modelled time of a collective on a whole tensor of `size` bytes.

    >>> collective_seconds("all_gather", 8_000_000, Axis(devices=4, bandwidth=1e9, latency=0.0))
    0.006
    """
    steps = COLLECTIVES[name] * (axis.devices - 1)
    return steps * axis.latency + collective_bytes(name, size, axis) / axis.bandwidth


def reshard(before: Layout, use: Use, *, has_gradient: bool) -> list[str]:
    """Return the collectives to read a value of layout `before` as `use`, gradient included."""
    forward = collective(before, use.layout)
    backward = collective(use.gradient, gradient_of(before)) if has_gradient else None
    return [name for name in (forward, backward) if name is not None]


def compute_seconds(flops: float, bytes_moved: float, mesh: Mesh, *, training: bool) -> float:
    """Return the modelled time of the arithmetic of one node on one device."""
    forward = max(flops / mesh.flops, bytes_moved / mesh.memory_bandwidth)
    return forward * (TRAINING_WORK if training else 1)
