"""Conversion of a local part to another layout on a mesh, and of its gradient back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from chop.distributed.conversions import KINDS
from chop.distributed.cost import collective
from chop.distributed.layouts import PARTIAL, REPLICATE, Layout, sharded_dim
from chop.distributed.local_calls import Layouts, Uses
from chop.distributed.parameter_copies import FreedCopy, StepCopy


def placement(layout: Layout) -> Placement:
    """Return the placement of torch for a layout."""
    dim = sharded_dim(layout)
    if dim is not None:
        return Shard(dim)
    return Partial() if layout == PARTIAL else Replicate()


def placements(layouts: Sequence[Layout]) -> list[Placement]:
    """Return the placements of torch for joint layouts."""
    return [placement(layout) for layout in layouts]


def sendable(tensor: Tensor) -> Tensor:
    """Return a tensor that every back end can send: truth values as bytes."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def layouts_of(uses: Uses) -> Layouts:
    """Return the layouts of joint uses."""
    return tuple(use.layout for use in uses)


def gradients_of(uses: Uses) -> Layouts:
    """Return the layouts of the gradients of joint uses."""
    return tuple(use.gradient for use in uses)


def redistribute(local: Tensor, mesh: DeviceMesh, before: Layouts, after: Layouts) -> Tensor:
    """Return the local part in layouts `after` of the tensor with the part `local` in `before`."""
    if before == after:
        return local
    if local.dtype == torch.bool:
        return redistribute(sendable(local), mesh, before, after).view(torch.bool)
    pairs = list(zip(before, after, strict=True))
    targets = [REPLICATE if a == PARTIAL != b else a for b, a in pairs]
    tensor = DTensor.from_local(local.contiguous(), mesh, placements(before), run_check=False)
    for layouts in _in_order(before, targets):
        tensor = tensor.redistribute(placements=placements(layouts))
    part = tensor.to_local()
    part = part.wait() if isinstance(part, AsyncCollectiveTensor) else part
    # partial sums of a whole tensor: the first device has it, the others have zeros
    added = [axis for axis, (b, a) in enumerate(pairs) if a == PARTIAL != b]
    is_first = all(mesh.get_local_rank(axis) == 0 for axis in added)
    return part if is_first else torch.zeros_like(part)


def _in_order(before: Layouts, after: Sequence[Layout]) -> list[Layouts]:
    """Return the layouts after each collective of a conversion, in the order of its price.

    torch chooses the order where two axes split the same dimension on the way.
    """
    kinds = [KINDS.index(collective(*pair) or "") for pair in zip(before, after, strict=True)]
    steps = [before]
    for axis in sorted(range(len(kinds)), key=lambda axis: (kinds[axis], -axis)):
        steps.append((*steps[-1][:axis], after[axis], *steps[-1][axis + 1 :]))
    if any(map(_splits_twice, steps)):
        return [tuple(after)]
    return [new for old, new in itertools.pairwise(steps) if new != old]


def _splits_twice(layouts: Layouts) -> bool:
    dims = [dim for layout in layouts if (dim := sharded_dim(layout)) is not None]
    return len(dims) != len(set(dims))


class Conversion(torch.autograd.Function):
    """Conversion of a local part, forward and backward.

    `stored`: the copy of a parameter for all micro-batches of a step, or one that is freed between
    forward and backward; None for another value.
    """

    @staticmethod
    def forward(
        ctx: Any,
        local: Tensor,
        mesh: DeviceMesh,
        before: Uses,
        after: Uses,
        stored: StepCopy | FreedCopy | None = None,
    ) -> Tensor:
        ctx.mesh, ctx.before, ctx.after, ctx.stored = mesh, before, after, stored
        layouts, targets = layouts_of(before), layouts_of(after)
        if layouts == targets:
            return local.view_as(local)
        if stored is None:
            return redistribute(local, mesh, layouts, targets)
        return stored.provide(lambda: redistribute(local, mesh, layouts, targets))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if ctx.stored is not None and ctx.stored.keeps(grads[0]):
            return (None,) * 5
        before, after = gradients_of(ctx.after), gradients_of(ctx.before)
        return redistribute(grads[0], ctx.mesh, before, after), None, None, None, None
