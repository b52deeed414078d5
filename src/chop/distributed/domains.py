"""Options of each value on the whole mesh, with their cost.

An option has one strategy per mesh axis. Costs have these parts, in this order:

| part | unit | meaning |
|---|---|---|
| `ARITHMETIC` | s | arithmetic per micro-batch |
| `TALK` | s | communication per micro-batch that the next node waits for |
| `HIDDEN` | s | communication per micro-batch that can overlap with arithmetic |
| `STEP` | s | communication per training step, whatever the number of micro-batches |
| `HIDDEN_STEP` | s | communication per training step that can overlap with arithmetic |
| `STATIC` | bytes | memory for the whole step: parameters, gradients, states, copies |
| `STORED` | bytes | memory per micro-batch between its forward and its backward |
| `ENTERING` | bytes | the same, only if the segment that reads the value is recomputed |
| `AGAIN` | s | additional arithmetic per micro-batch if the value is recomputed in backward |
| `AGAIN_TALK` | s | additional communication per micro-batch if it is recomputed |
| `MOMENT` | bytes | memory for a moment: a gathered copy that is freed after its use |

Gathers of parameters and reductions of their gradients can overlap: they do not depend on the
arithmetic that runs at that time. Whether they do is a property of the mesh (`Mesh.overlaps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from chop.distributed.conversions import (
    WHOLE_CODE,
    Codes,
    Tensors,
    conversion_seconds,
    encode,
    paired_seconds,
    shares,
)
from chop.distributed.cost import TRAINING_COPIES, TRAINING_WORK
from chop.distributed.layouts import REPLICATE, Use, gradient_of
from chop.distributed.mesh import Mesh
from chop.distributed.program import ProgramValue
from chop.distributed.saved_tensors import inner_layouts
from chop.distributed.strategies import Strategy

PARTS = 11
"""Number of parts of a cost."""
ARITHMETIC, TALK, HIDDEN, STEP, HIDDEN_STEP, STATIC, STORED, ENTERING = range(8)
AGAIN, AGAIN_TALK, MOMENT = range(8, PARTS)

Option = tuple[Strategy, ...]
"""Strategy of a value along each mesh axis."""
Filter = Callable[[ProgramValue, Option], bool]
"""Restriction of a plan: True for each option that is allowed."""


@dataclass(frozen=True)
class Setting:
    """Mesh and step to plan for; the last two allow strategies that only save memory.

    `shards_states`: split gradients and optimizer state of replicated parameters (ZeRO), and free
    gathered parameters after forward (FSDP). `recomputes`: recompute segments in backward.
    """

    mesh: Mesh
    training: bool = True
    shards_states: bool = False
    recomputes: bool = False


class Face(NamedTuple):
    """Layouts of a value under each option, and layouts of the gradient that belongs to it."""

    layouts: Codes
    gradients: Codes


@dataclass(frozen=True, eq=False)
class ValueOptions:
    """Options of a value. `costs`: one row per part, one column per option.

    `inner`: the same for the tensors that the node makes for its backward pass.
    """

    options: tuple[Option, ...]
    face: Face
    uses: dict[str, Face]
    costs: np.ndarray
    inner: np.ndarray
    tensors: Tensors
    is_parameter: bool
    has_gradient: bool

    @property
    def is_freed(self) -> np.ndarray:
        """True for each option whose gathered copy is freed after forward."""
        return np.array([any(s.is_freed for s in option) for option in self.options])


def structure_of(value: ProgramValue) -> tuple[Any, ...]:
    """Return a key that is equal for values with the same options and costs."""
    call = value.call
    return (
        id(value.op),
        call.rule,
        tuple(call.operands.items()),
        call.results,
        repr(sorted(call.config.items(), key=lambda item: item[0])),
        call.permutation,
        tuple(r.operand for r in value.references),
        value.itemsize,
        tuple(sorted(value.operand_itemsizes.items())),
        (value.is_parameter, value.is_fixed, value.is_view, value.has_gradient),
        repr(value.split),
        (value.saved.is_alias, value.saved.keeps_result, tuple(sorted(value.saved.operands))),
        value.inner,
    )


def options_of(value: ProgramValue, setting: Setting) -> list[Option]:
    """Return every combination of strategies along the axes; all splits are even."""
    has_states = value.is_parameter and value.has_gradient and setting.shards_states
    partial: list[Option] = [()]
    for axis, devices in enumerate(setting.mesh.shape):
        extended: list[Option] = []
        for option in partial:
            done = [replace(s, result=s.state or s.result) for s in option]
            others = list(zip(done, setting.mesh.shape[:axis], strict=True))
            strategies = value.localised(others).layouts(devices)
            states = _state_strategies(strategies) if has_states else []
            extended += [(*option, strategy) for strategy in [*strategies, *states]]
        partial = extended
    if has_states and setting.training:
        partial += [_freed(o) for o in partial if any(s.result != REPLICATE for s in o)]
    return partial


def _state_strategies(splits: Sequence[Strategy]) -> list[Strategy]:
    """Return the strategy that splits gradient and optimizer state only, if a dimension is even.

    All dimensions cost the same, so the first one is enough.
    """
    layouts = [s.result for s in splits if s.result != REPLICATE]
    return [Strategy(f"state {layout[1:]}", {}, REPLICATE, layout) for layout in layouts[:1]]


def _freed(option: Option) -> Option:
    return tuple(replace(s, is_freed=True) if s.result != REPLICATE else s for s in option)


def domain_of(
    value: ProgramValue, setting: Setting, options: Sequence[Option], operands: Sequence[str]
) -> ValueOptions:
    """Return `options` of `value` with their layouts, their uses of `operands` and their costs."""
    states = [[s.state or gradient_of(s.result) for s in option] for option in options]
    face = Face(encode([[s.result for s in option] for option in options]), encode(states))
    tensors = Tensors(value.size, max(1, len(value.call.results)))
    uses = {
        name: faces_of([tuple(s.use(name) for s in option) for option in options])
        for name in operands
    }
    price = _parameter_costs if value.is_parameter else _node_costs
    return ValueOptions(
        tuple(options),
        face,
        uses,
        price(value, setting, options, face),
        _inner_costs(value, options, setting),
        tensors,
        value.is_parameter,
        value.has_gradient,
    )


def faces_of(uses: Sequence[tuple[Use, ...]]) -> Face:
    """Return the layouts and gradients of joint uses."""
    layouts = encode([[use.layout for use in each] for each in uses])
    return Face(layouts, encode([[use.gradient for use in each] for each in uses]))


def _parameter_costs(
    value: ProgramValue, setting: Setting, options: Sequence[Option], face: Face
) -> np.ndarray:
    costs = np.zeros((PARTS, len(options)))
    costs[STATIC] = value.size * shares(face.layouts, setting.mesh)
    if setting.training and value.has_gradient:
        states = value.size * shares(face.gradients, setting.mesh)
        costs[STATIC] += (TRAINING_COPIES - 1) * states
        # the new value of a parameter whose optimizer state is split is gathered after the step
        costs[STEP] = paired_seconds(
            face.gradients, face.layouts, Tensors(value.size, 1), setting.mesh
        )
    return costs


def _node_costs(
    value: ProgramValue, setting: Setting, options: Sequence[Option], face: Face
) -> np.ndarray:
    costs = np.zeros((PARTS, len(options)))
    if not value.call.results:
        return costs
    mesh, size = setting.mesh, value.size * shares(face.layouts, setting.mesh)
    if not value.is_view and value.references:
        devices = np.array(mesh.shape)
        split = [[s.is_split for s in option] for option in options]
        work = value.flops() / np.where(split, devices, 1).prod(axis=-1)
        forward = np.maximum(
            work / mesh.flops, _moved(value, options, mesh, size) / mesh.memory_bandwidth
        )
        times = TRAINING_WORK if setting.training and value.has_gradient else 1
        costs[ARITHMETIC], costs[AGAIN] = forward * times, forward
    if setting.training and value.saved.holds_result:
        costs[STORED] = size
    return costs


def _inner_costs(value: ProgramValue, options: Sequence[Option], setting: Setting) -> np.ndarray:
    """Return the cost of the tensors that each option makes for its own backward pass."""
    costs = np.zeros((PARTS, len(options)))
    for part in value.inner if setting.training else ():
        layouts = [inner_layouts(part, option) for option in options]
        costs[STORED] += part.size * shares(encode(layouts), setting.mesh)
    return costs


def _moved(
    value: ProgramValue, options: Sequence[Option], mesh: Mesh, size: np.ndarray
) -> np.ndarray:
    """Return the bytes that each option reads and writes in the memory of one device."""
    if value.op.reads_rows:  # it reads only the rows of its table that it returns
        return 2 * size
    moved = size.copy()
    for name, whole in value.operand_bytes().items():
        layouts = encode([[s.operands.get(name, REPLICATE) for s in option] for option in options])
        moved += whole * shares(layouts, mesh)
    return moved


def reading_costs(
    source: ValueOptions,
    before: Face,
    after: Face,
    setting: Setting,
    is_freed: np.ndarray | None = None,
    *,
    is_saved: bool = True,
    is_held: bool = True,
) -> np.ndarray:
    """Return the cost to read a value: parts × options of `before` × options of `after`.

    `is_freed`: options of `before` whose copy is freed after forward and gathered again.
    `is_saved`: training stores what is read. `is_held`: the value is stored anyway.
    """
    mesh, tensors = setting.mesh, source.tensors
    forward = conversion_seconds(before.layouts, after.layouts, tensors, mesh)
    backward = np.zeros_like(forward)
    if setting.training and source.has_gradient:
        backward = conversion_seconds(after.gradients, before.gradients, tensors, mesh).T
    is_copied = (before.layouts[:, None] != after.layouts[None]).any(axis=-1)
    copies = np.where(is_copied & setting.training, tensors.size * shares(after.layouts, mesh), 0.0)
    costs = np.zeros((PARTS, *forward.shape))
    if not source.is_parameter:
        costs[TALK], costs[AGAIN_TALK] = forward + backward, forward
        if setting.training and is_saved:
            own = 0.0 if is_held else tensors.size * shares(before.layouts, mesh)[:, None]
            costs[STORED] = np.where(is_copied, copies, own)
        return costs
    freed = np.zeros(len(forward), dtype=bool) if is_freed is None else is_freed
    split: np.ndarray = np.any(before.gradients > WHOLE_CODE, axis=-1, keepdims=True)
    costs[HIDDEN] = np.where(freed[:, None], 2 * forward, 0.0)
    costs[HIDDEN] += np.where(split, backward, 0.0)  # no whole gradient to add up in
    costs[HIDDEN_STEP] = np.where(freed[:, None], 0.0, forward) + np.where(split, 0.0, backward)
    costs[STATIC] = np.where(freed[:, None], 0.0, copies)
    costs[MOMENT] = np.where(freed[:, None], copies, 0.0)
    return costs


def published_uses(source: ValueOptions, readers: Sequence[Face]) -> Face:
    """Return the layouts in which a value can be provided to several readers at once.

    These are the layouts in which it is computed, and those that at least two readers use.
    """
    own = np.concatenate([source.face.layouts, source.face.gradients], axis=1)
    rows = dict.fromkeys(map(tuple, own.tolist()))
    counts: dict[tuple[int, ...], int] = {}
    for face in readers:
        pairs = np.concatenate([face.layouts, face.gradients], axis=1)
        for row in dict.fromkeys(map(tuple, pairs.tolist())):
            counts[row] = counts.get(row, 0) + 1
    rows |= dict.fromkeys(row for row, count in counts.items() if count > 1)
    table = np.array(list(rows), dtype=np.int64)
    axes = table.shape[1] // 2
    return Face(table[:, :axes], table[:, axes:])
