"""Check that a graph's annotations are true and that it computes what the model computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import GraphError
from chop.ir.graph import MaseGraph
from chop.ir.meta import MaseMetadata, ValueMeta, mase_meta
from chop.ir.node_arguments import describe_arguments, describe_result, tensors_in
from chop.ir.ops import MASE_TYPES, find_op
from chop.passes.base import PassResult, graph_pass
from chop.passes.rewrite.propagate import bind_inputs, example_inputs, propagate, undisturbed


@dataclass(frozen=True)
class VerifyMetadataArgs:
    """`original`: a module or graph to compare with; `inputs`: on what (None: those of the trace).

    `tolerance`: the largest absolute difference of outputs that passes.
    """

    original: Any = None
    inputs: Any = None
    tolerance: float = 1e-5


@graph_pass("verify_metadata_analysis_pass", VerifyMetadataArgs, needs=("common",))
def verify_metadata_analysis_pass(graph: MaseGraph, args: VerifyMetadataArgs) -> PassResult:
    """Raise at the first node whose metadata is wrong; with `original`, compare outputs too."""
    return graph, verify(graph, args.original, args.inputs, tolerance=args.tolerance)


def verify(
    graph: MaseGraph,
    original: nn.Module | MaseGraph | None = None,
    inputs: Any = None,
    *,
    tolerance: float = 1e-5,
) -> dict[str, Any]:
    """Facts of a sound graph: how many nodes were checked, how far its output is from `original`.

    Checks that the graph lints, that every node is annotated, that types are of the IR, that
    links follow the edges, and that shapes are those of a run. GraphError names the node.
    """
    graph.fx_graph.lint()
    for node in graph.fx_graph.nodes:
        for check in NODE_CHECKS:
            check(graph, node)
    verify_shapes(graph)
    info: dict[str, Any] = {"nodes": len(graph.fx_graph.nodes)}
    if original is not None:
        info["max_abs_difference"] = verify_output(graph, original, inputs, tolerance=tolerance)
    return info


def verify_annotated(graph: MaseGraph, node: fx.Node) -> None:
    """Every node carries metadata with operands and results."""
    meta = node.meta.get("mase")
    if not isinstance(meta, MaseMetadata) or meta.common.args is None or not meta.common.results:
        raise GraphError(
            f"node '{node.name}': not annotated. Run add_common_metadata_analysis_pass."
        )


def verify_type(graph: MaseGraph, node: fx.Node) -> None:
    """The type is one of the seven, and type and op are those of the op table."""
    common = mase_meta(node).common
    if common.mase_type not in MASE_TYPES:
        allowed = ", ".join(MASE_TYPES)
        raise GraphError(
            f"node '{node.name}': mase_type is '{common.mase_type}'. Allowed: {allowed}."
        )
    op = find_op(node, graph.custom_ops)
    if op is not None and (op.name, op.type) != (common.mase_op, common.mase_type):
        raise GraphError(
            f"node '{node.name}': annotated as {common.mase_op} ({common.mase_type}), "
            f"but it is {op.name} ({op.type})."
        )


def verify_links(graph: MaseGraph, node: fx.Node) -> None:
    """Each operand comes `from` the node the graph feeds it from, with that node's shape."""
    found = mase_meta(node).common.args or {}
    wanted = describe_arguments(node, find_op(node, graph.custom_ops))
    if list(found) != list(wanted):
        raise GraphError(
            f"node '{node.name}': args are {', '.join(found) or 'none'}; "
            f"the graph gives {', '.join(wanted) or 'none'}."
        )
    for name, value in wanted.items():
        _verify_link(node, name, found[name], value)


def _verify_link(node: fx.Node, name: str, found: ValueMeta, wanted: ValueMeta) -> None:
    if found.source is not wanted.source:
        raise GraphError(
            f"node '{node.name}': args.{name} comes from '{found.source}' in the metadata "
            f"and from '{wanted.source}' in the graph."
        )
    if found.shape != wanted.shape:
        raise GraphError(
            f"node '{node.name}': args.{name} has shape {found.shape}, its source {wanted.shape}."
        )


NODE_CHECKS: tuple[Callable[[MaseGraph, fx.Node], None], ...] = (
    verify_annotated,
    verify_type,
    verify_links,
)
"""What must hold of every node; to add a check, add a function."""


def verify_shapes(graph: MaseGraph) -> None:
    """Results have the shapes and dtypes that a run on the annotated inputs gives."""
    wrong: list[str] = []

    def record(node: fx.Node, result: Any) -> None:
        found = mase_meta(node).common.results or {}
        wanted = describe_result(result)
        if [_facts(v) for v in found.values()] != [_facts(v) for v in wanted.values()]:
            wrong.append(
                f"node '{node.name}': results are {_show(found)}; a run gives {_show(wanted)}."
            )

    propagate(graph, example_inputs(graph)[0], record, real=False)
    if wrong:
        raise GraphError(wrong[0])


def _facts(value: ValueMeta) -> tuple[Any, ...]:
    return (value.shape, value.torch_dtype)


def _show(results: dict[str, ValueMeta]) -> str:
    return ", ".join(f"{n} {v.shape} {v.torch_dtype}" for n, v in results.items())


def verify_output(
    graph: MaseGraph, original: nn.Module | MaseGraph, inputs: Any, *, tolerance: float
) -> float:
    """The largest absolute difference between the outputs of `graph` and `original`."""
    bound = bind_inputs(graph, inputs, "verify")
    module = original.model if isinstance(original, MaseGraph) else original
    found, wanted = run_tensors(graph.model, bound), run_tensors(module, bound)
    if [t.shape for t in found] != [t.shape for t in wanted]:
        raise GraphError(f"the graph gives {_shapes(found)}; the original gives {_shapes(wanted)}.")
    difference = max((_distance(a, b) for a, b in zip(found, wanted, strict=True)), default=0.0)
    if not difference <= tolerance:  # so that a NaN fails
        raise GraphError(
            f"the graph's output differs from the original's by {difference:g}, "
            f"more than the tolerance {tolerance:g}."
        )
    return difference


def _shapes(tensors: list[Tensor]) -> str:
    return ", ".join(str(list(t.shape)) for t in tensors) or "no tensors"


def run_tensors(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    """The tensors `model` gives in evaluation mode; the model is left as it was."""
    with undisturbed(model):
        return list(tensors_in(model(**inputs)))


def _distance(a: Tensor, b: Tensor) -> float:
    if a.numel() == 0:
        return 0.0
    same = (a == b) | (a.isnan() & b.isnan())  # equal infinities differ by NaN otherwise
    return float(torch.where(same, 0.0, (a.double() - b.double()).abs()).max())
