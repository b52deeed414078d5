"""Tensor-parallel plans in the words of transformers, which then runs them without this package.

transformers splits linear layers by columns and by rows. What is between them follows: it is
computed on the local part. So a plan can be said in its words if no other value changes its layout.
"""

from __future__ import annotations

import re
from typing import Any

from chop.arguments import an, takes
from chop.distributed.layouts import PARTIAL, REPLICATE, Layout, shard
from chop.distributed.plan import Plan
from chop.distributed.program import Program, ProgramValue, program_of
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph

COLUMN, ROW = "column", "row"
GATHERED, WHOLE = "colwise_gather_output", "replicate"
STYLES = {COLUMN: "colwise", ROW: "rowwise"}
"""Strategy of a linear layer -> style of transformers."""


@takes(plan=an(Plan), graph=an(MaseGraph))
def transformers_plan(plan: Plan, graph: MaseGraph) -> dict[str, Any]:
    """Return `tp_size` and `tp_plan`, arguments of transformers' `DistributedConfig`.

    Raise a ConfigError that names the value if transformers cannot run the plan.
    """
    axis = _tensor_axis(plan)
    program = program_of(graph)
    gathered = _check(plan, program, axis)
    styles: dict[str, str] = {}
    for node in graph.fx_graph.nodes:
        if node.op != "call_module" or node.name not in plan.strategies:
            continue
        strategy = plan.strategies[node.name][axis].name
        style = GATHERED if node.name in gathered else STYLES.get(strategy, WHOLE)
        _add(styles, str(node.target), style)
    named = styles if _has_whole_style() else {n: s for n, s in styles.items() if s != WHOLE}
    return {"tp_size": plan.mesh.shape[axis], "tp_plan": named}


def _has_whole_style() -> bool:
    """Return True if transformers adds a plan to that of its model, with a style for whole layers.

    Older versions replace the plan of the model, and layers without a style are whole.
    """
    from transformers.distributed import tensor_parallel

    styles: Any = getattr(tensor_parallel, "ALL_PARALLEL_STYLES")  # noqa: B009 - not exported
    return WHOLE in styles


def _tensor_axis(plan: Plan) -> int:
    axes = [axis for axis, size in enumerate(plan.mesh.shape) if size > 1]
    if len(axes) != 1:
        shape = "x".join(map(str, plan.mesh.shape))
        raise ConfigError(
            f"transformers_plan: a mesh of {shape}. Allowed: one axis with more than one device."
        )
    return axes[0]


def _add(styles: dict[str, str], path: str, style: str) -> None:
    """Add the style of a layer; transformers gives all layers of a stack one style."""
    name = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)
    if styles.setdefault(name, style) != style:
        raise ConfigError(
            f"transformers_plan: layers '{name}' are split in two ways, '{styles[name]}' and "
            f"'{style}'. Allowed: one for all of them."
        )


def _check(plan: Plan, program: Program, axis: int) -> set[str]:
    """Return the layers whose columns are gathered; raise if another value changes its layout."""
    values = {value.name: value for value in program.values}
    is_gathered: dict[str, set[bool]] = {}
    for value in program.values:
        for source in value.references:
            producer = values[source.value]
            use = plan.uses(value.name, source.operand)[axis].layout
            if producer.is_parameter or _is_reduced(plan, producer, axis, use):
                continue
            gathers = _is_gathered(plan, producer, axis, use)
            computed = _layout(plan, source.value, axis)
            if not gathers and use != computed:
                raise ConfigError(
                    f"transformers_plan: '{value.name}' reads '{source.value}' in layout {use}, "
                    f"and it is computed in layout {computed}. transformers "
                    "changes layouts only behind linear layers: give a plan of the kind Megatron "
                    "(hand_plans)."
                )
            is_gathered.setdefault(source.value, set()).add(gathers)
    mixed = [name for name, both in is_gathered.items() if len(both) > 1]
    if mixed:
        raise ConfigError(
            f"transformers_plan: some readers of '{mixed[0]}' need it whole, and others in parts."
        )
    return {name for name, both in is_gathered.items() if both == {True}}


def _layout(plan: Plan, name: str, axis: int) -> Layout:
    """Return the layout in which a value is provided to its readers."""
    return plan.published[name][axis].layout if name in plan.published else plan.layouts(name)[axis]


def _is_reduced(plan: Plan, producer: ProgramValue, axis: int, use: Layout) -> bool:
    """Return True for a layer split by rows whose partial sums are added."""
    is_row = plan.strategies[producer.name][axis].name == ROW
    return is_row and plan.layouts(producer.name)[axis] == PARTIAL and use == REPLICATE


def _is_gathered(plan: Plan, producer: ProgramValue, axis: int, use: Layout) -> bool:
    """Return True for a layer split by columns whose result is read whole."""
    is_column = plan.strategies[producer.name][axis].name == COLUMN
    last = shard(len(producer.call.result) - 1) if is_column else ""
    return is_column and plan.layouts(producer.name)[axis] == last and use == REPLICATE
