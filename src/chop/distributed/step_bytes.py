"""Bytes of one training step on a device of each stage, as the plan predicts them.

A step sends what the conversions of the plan send, once or for every micro-batch, and the values
and gradients that pass between stages. Two sums are added for the step itself: the loss, which
every stage learns, and the gradients of parameters that share their values over stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chop.distributed.conversions import Tensors, collectives_of, encode
from chop.distributed.cost import COLLECTIVES
from chop.distributed.layouts import REPLICATE, Layout, local_shape
from chop.distributed.mesh import Mesh
from chop.distributed.plan import Plan
from chop.distributed.pricing import Talk
from chop.distributed.program import ProgramValue, parameter_value, program_of
from chop.distributed.split_plan import SplitPlan
from chop.ir.graph import MaseGraph

LOSS_BYTES = 8
"""Bytes of the loss, which the stages add up in double precision."""
GREETING_BYTES = 4
"""Bytes that torch sends to each neighbour in front of the first step of a pipeline."""


@dataclass(frozen=True)
class StepBytes:
    """Bytes of parameters on a device, and bytes that it sends in one training step."""

    parameters: int
    sent: int


def step_bytes(
    graph: MaseGraph, split: SplitPlan, *, has_exchange: bool = True, is_first: bool = False
) -> list[StepBytes]:
    """Return the predicted bytes of a device of each stage.

    `has_exchange`: False for a back end without all-to-all, such as gloo; an all-gather replaces
    it there. `is_first`: the first step, in front of which the stages of a pipeline meet.
    """
    values = program_of(graph).values
    stages = range(len(split.parts))
    bytes_of = [_stage_bytes(values, split, stage, has_exchange) for stage in stages]
    if not is_first:
        return bytes_of
    neighbours = [len({stage - 1, stage + 1}.intersection(stages)) for stage in stages]
    return [
        replace(each, sent=each.sent + count * GREETING_BYTES)
        for each, count in zip(bytes_of, neighbours, strict=True)
    ]


def _stage_bytes(
    values: Sequence[ProgramValue], split: SplitPlan, stage: int, has_exchange: bool
) -> StepBytes:
    plan, nodes = split.plan, set(split.parts[stage].nodes)
    read = {r.value for value in values if value.name in nodes for r in value.references}
    here = [value for value in values if value.is_parameter and value.name in read]
    names = nodes | {value.name for value in here}
    sent = sum(
        _sent(talk, plan.mesh, has_exchange) * (1 if talk.is_once else split.micro_batches)
        for talk in plan.cost.talks
        if (talk.reader or talk.value) in names
    )
    sent += _passed(split, stage) * split.micro_batches
    sent += _added_up(LOSS_BYTES, len(split.parts))
    sent += _tied(values, {value.name for value in here}, split)
    own_bytes = sum(
        _local(value.call.result, plan.layouts(value.name), plan.mesh) * value.itemsize
        for value in here
    )
    return StepBytes(own_bytes, round(sent))


def sent_bytes(plan: Plan, *, has_exchange: bool = True) -> int:
    """Return the bytes that a device sends in one step of a plan without stages."""
    return round(sum(_sent(talk, plan.mesh, has_exchange) for talk in plan.cost.talks))


def _sent(talk: Talk, mesh: Mesh, has_exchange: bool) -> float:
    is_replaced = talk.collective == "all_to_all" and not has_exchange
    return talk.sent * (mesh.shape[talk.axis] if is_replaced else 1)


def _passed(split: SplitPlan, stage: int) -> int:
    """Return the bytes of one micro-batch that a device sends to the stages beside its own."""
    part, plan, total = split.parts[stage], split.plan, 0
    for names, is_forward in ((part.sends, True), (part.receives, False)):
        for name in names:
            facts = part.facts[name]
            shared = plan.published.get(name)
            layouts = plan.layouts(name) if shared is None else [use.layout for use in shared]
            if is_forward or facts.has_gradient:
                total += _local(facts.shape, layouts, plan.mesh) * facts.torch_dtype.itemsize
    return total


def _added_up(size: float, devices: int) -> float:
    return COLLECTIVES["all_reduce"] * size * (devices - 1) / devices


def _tied(values: Sequence[ProgramValue], here: set[str], split: SplitPlan) -> float:
    """Return the bytes for the gradients of parameters that share their values."""
    own = {value.name: value for value in values if value.is_parameter}
    whole = (REPLICATE,) * len(split.plan.mesh.shape)
    total = 0.0
    for first in set(split.copies.values()):
        group = [first, *(name for name, of in split.copies.items() if of == first)]
        names = [parameter_value(name) for name in group if parameter_value(name) in own]
        if not names or not own[names[0]].has_gradient:
            continue
        size = own[names[0]].size
        total += _added_up(size, len(split.parts))
        for name in here.intersection(names):
            states = [s.state or s.result for s in split.plan.strategies[name]]
            gathered = encode([states]), encode([whole])
            total += sum(
                c.sent for c in collectives_of(*gathered, Tensors(size, 1), split.plan.mesh)
            )
    return total


def _local(shape: Sequence[int], layouts: Sequence[Layout], mesh: Mesh) -> int:
    return math.prod(local_shape(tuple(shape), zip(layouts, mesh.shape, strict=True)))
