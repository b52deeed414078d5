"""Conversion of a local part to another layout on a mesh, and of its gradient back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from chop.distributed.conversions import LayoutStep, conversion_steps
from chop.distributed.layouts import PARTIAL, Layout, sharded_dim
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
    """Return the local part in layouts `after` of the tensor with the part `local` in `before`.

    The steps are those that the plan has priced.
    """
    if before == after:
        return local
    if local.dtype == torch.bool:
        return redistribute(sendable(local), mesh, before, after).view(torch.bool)
    part = local
    for step in conversion_steps(before, after, tuple(mesh.shape)):
        part = _along_axis(part, mesh, step)
    # partial sums of a whole tensor: the first device has it, the others have zeros
    pairs = enumerate(zip(before, after, strict=True))
    added = [axis for axis, (b, a) in pairs if a == PARTIAL != b]
    is_first = all(mesh.get_local_rank(axis) == 0 for axis in added)
    return part if is_first else torch.zeros_like(part)


COLLECTIVES: Any = torch.ops._c10d_functional
"""Collectives of torch that return their result, by any back end."""


def _along_axis(part: Tensor, mesh: DeviceMesh, step: LayoutStep) -> Tensor:
    """Return the part of this device after one step of a conversion."""
    old, new = sharded_dim(step.before), sharded_dim(step.after)
    count, part = mesh.size(step.axis), part.contiguous()
    name = mesh.get_group(step.axis).group_name
    if count == 1:
        return part
    if step.before == PARTIAL and new is None:
        return _arrived(COLLECTIVES.all_reduce(part, "sum", name))
    if step.before == PARTIAL and new is not None:
        sent = torch.cat(part.chunk(count, new)) if new else part
        return _arrived(COLLECTIVES.reduce_scatter_tensor(sent, "sum", count, name))
    if old is not None and new is not None and _can_exchange(part):
        return _exchanged(part, count, name, old, new)
    if old is not None:
        part = _arrived(COLLECTIVES.all_gather_into_tensor(part, count, name))
        part = torch.cat(part.chunk(count), old) if old else part
    return part if new is None else _own_part(part, mesh, step.axis, new)


def _arrived(tensor: Tensor) -> Tensor:
    arrived: Tensor = COLLECTIVES.wait_tensor(tensor)
    return arrived


def _own_part(whole: Tensor, mesh: DeviceMesh, axis: int, dim: int) -> Tensor:
    """Return a copy of this device's part, so that the whole tensor can be forgotten."""
    return whole.chunk(mesh.size(axis), dim)[mesh.get_local_rank(axis)].clone(
        memory_format=torch.contiguous_format
    )


def _can_exchange(part: Tensor) -> bool:
    """Return True if the back end has an all-to-all; gloo has none, and gathers instead."""
    return part.device.type != "cpu"


def _exchanged(part: Tensor, count: int, name: str, old: int, new: int) -> Tensor:
    """Return the part that is divided along `new` instead of `old`; `name`: of the group."""
    sent = torch.stack(part.chunk(count, new)).flatten(0, 1)
    sizes = [len(sent) // count] * count
    received = _arrived(COLLECTIVES.all_to_all_single(sent, sizes, sizes, name))
    return torch.cat(received.chunk(count), old)


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
