"""Common metadata of a graph's nodes: write it, and update it after changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.ir.meta import CommonMeta, MaseMetadata, ValueMeta
from chop.ir.node_arguments import describe_arguments, describe_result
from chop.ir.ops import IMPLICIT_FUNC, Op, find_op
from chop.ir.trace.effects import is_in_place
from chop.log import get_logger
from chop.passes.rewrite.node_formats import annotate_formats
from chop.passes.rewrite.propagate import META, device_of, example_inputs, propagate
from chop.passes.rewrite.surgery import add_constant, bypass

logger = get_logger(__name__)
Keep = Callable[[Tensor], Any]


def drop_value(tensor: Tensor) -> None:
    """Store no values."""


def keeper(graph: MaseGraph) -> Keep:
    """Return a function that stores values; it copies them if a later node may write to them."""
    if any(is_in_place(node) for node in graph.fx_graph.nodes):
        return lambda tensor: tensor.detach().clone()
    return lambda tensor: tensor.detach()


def annotate_op(graph: MaseGraph, node: fx.Node) -> Op | None:
    """Set `mase_op` and `mase_type` of `node`; return its row, None if the table has none."""
    op = find_op(node, graph.custom_ops)
    common = ensure_meta(node).common
    common.mase_op = op.name if op else _own_name(node)
    common.mase_type = op.type if op else IMPLICIT_FUNC
    return op


def warn_unknown(nodes: Iterable[fx.Node]) -> None:
    """Warn once for each target without a row in the op table."""
    by_name: dict[str, list[fx.Node]] = {}
    for node in nodes:
        by_name.setdefault(_own_name(node), []).append(node)
    for name, same in by_name.items():
        others = f" and {len(same) - 1} more" if len(same) > 1 else ""
        logger.warning(
            "node '%s'%s (%s): no op is listed for '%s', so it is an implicit_func. "
            "Pass custom_ops to MaseGraph to describe it.",
            same[0].name,
            others,
            same[0].op,
            name,
        )


def _own_name(node: fx.Node) -> str:
    if node.op == "call_module" and node.graph.owning_module is not None:
        return type(node.graph.owning_module.get_submodule(str(node.target))).__name__
    return str(getattr(node.target, "__name__", node.target))


def ensure_meta(node: fx.Node) -> MaseMetadata:
    """Return the metadata of `node`; create it if there is none."""
    if not isinstance(node.meta.get("mase"), MaseMetadata):
        node.meta["mase"] = MaseMetadata()
    meta: MaseMetadata = node.meta["mase"]
    return meta


def annotate(graph: MaseGraph, inputs: Mapping[str, Any], *, add_value: bool, retry: bool) -> None:
    """Annotate ops, operands and results of every node, by one run of the graph on `inputs`."""
    ops = {node: annotate_op(graph, node) for node in graph.fx_graph.nodes}
    warn_unknown(node for node, op in ops.items() if op is None)
    keep = keeper(graph) if add_value else drop_value
    device = device_of(graph.model)

    def record(node: fx.Node, result: Any) -> None:
        annotate_node(node, ops[node], result, keep, device)

    propagate(graph, inputs, record, real=add_value, retry=retry)


def annotate_node(
    node: fx.Node, op: Op | None, result: Any, keep: Keep, device: torch.device
) -> None:
    """Annotate the operands and results of one node with annotated inputs, on `device`."""
    common: CommonMeta = ensure_meta(node).common
    common.results = describe_result(result, keep)
    common.args = describe_arguments(node, op, keep)
    annotate_formats(node)
    for value in (*common.results.values(), *common.args.values()):
        if value.device == META:
            value.device = device
        if isinstance(value.value, torch.device) and value.value == META:
            value.value = device


def replace_by_constant(graph: MaseGraph, node: fx.Node, name: str, value: Tensor) -> None:
    """Replace `node` by a buffer of the model with a copy of `value`."""
    free = add_constant(graph, name, value.detach().clone())
    with graph.fx_graph.inserting_before(node):
        constant = graph.fx_graph.get_attr(free)
    if is_annotated(graph):
        ensure_meta(constant)
    bypass(node, constant)


def is_annotated(graph: MaseGraph) -> bool:
    """Return True if every placeholder has common metadata, from which the rest is derived."""
    return all(
        isinstance(node.meta.get("mase"), MaseMetadata)
        and node.meta["mase"].common.results is not None
        for node in graph.fx_graph.nodes
        if node.op == "placeholder"
    )


def refresh(graph: MaseGraph) -> None:
    """Bring the common metadata of an annotated graph up to date after a change to it.

    New nodes are annotated, links follow the graph, and number formats set by other passes stay if
    their operand keeps its shape and dtype. Stored values are computed again. A graph without
    annotations stays unchanged.
    """
    if not is_annotated(graph):
        return
    ops = {node: annotate_op(graph, node) for node in graph.fx_graph.nodes}
    inputs, has_values = example_inputs(graph)
    keep = keeper(graph) if has_values else drop_value
    device = device_of(graph.model)

    def record(node: fx.Node, result: Any) -> None:
        common = ensure_meta(node).common
        old_args, old_results = common.args or {}, common.results or {}
        annotate_node(node, ops[node], result, keep, device)
        common.results = _merge(old_results, common.results or {})
        common.args = _merge(old_args, common.args or {})
        annotate_formats(node)

    propagate(graph, inputs, record, real=has_values)


def _merge(old: Mapping[str, ValueMeta], new: Mapping[str, ValueMeta]) -> dict[str, ValueMeta]:
    """Return `new` with the formats of `old` values of the same shape and dtype."""
    for name, value in new.items():
        before = old.get(name)
        kind = value.shape, value.torch_dtype
        if before is not None and value.is_tensor and kind == (before.shape, before.torch_dtype):
            value.follow(before, is_applied=before.is_applied)
    return dict(new)
