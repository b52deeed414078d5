"""Check a graph's annotations, and its output against the original model."""

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
    """Settings of `verify_metadata_analysis_pass`.

    `original`: a module or graph to compare with. `inputs`: those of the comparison; None uses
    those of the trace. `tolerance`: the largest accepted absolute difference of outputs.
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
    """Check a graph; return the number of nodes and the distance of its output from `original`.

    The graph must lint, every node must be annotated, types must be those of the IR, links must
    follow the edges, and shapes must be those of a run. GraphError names the node.
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
    """Raise unless the node has metadata with operands and results."""
    meta = node.meta.get("mase")
    if not isinstance(meta, MaseMetadata) or meta.common.args is None or not meta.common.results:
        raise GraphError(
            f"node '{node.name}': not annotated. Run add_common_metadata_analysis_pass."
        )


def verify_type(graph: MaseGraph, node: fx.Node) -> None:
    """Raise unless type and op of the node are those of the op table."""
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
    """Raise unless each operand comes `from` the graph's node, with that node's shape."""
    actual = mase_meta(node).common.args or {}
    expected = describe_arguments(node, find_op(node, graph.custom_ops))
    if list(actual) != list(expected):
        raise GraphError(
            f"node '{node.name}': args are {', '.join(actual) or 'none'}; "
            f"the graph gives {', '.join(expected) or 'none'}."
        )
    for name, value in expected.items():
        source, shape = actual[name].source, actual[name].shape
        if source is not value.source:
            raise GraphError(
                f"node '{node.name}': args.{name} comes from '{source}' in the metadata "
                f"and from '{value.source}' in the graph."
            )
        if shape != value.shape:
            raise GraphError(
                f"node '{node.name}': args.{name} has shape {shape}, its source {value.shape}."
            )


NODE_CHECKS: tuple[Callable[[MaseGraph, fx.Node], None], ...] = (
    verify_annotated,
    verify_type,
    verify_links,
)
"""Checks of every node; to add a check, add a function."""


def verify_shapes(graph: MaseGraph) -> None:
    """Raise unless results have the shapes and dtypes of a run on the annotated inputs."""
    wrong: list[str] = []

    def record(node: fx.Node, result: Any) -> None:
        actual, expected = mase_meta(node).common.results or {}, describe_result(result)
        facts = [[(v.shape, v.torch_dtype) for v in r.values()] for r in (actual, expected)]
        if facts[0] != facts[1]:
            wrong.append(
                f"node '{node.name}': results are {_show(actual)}; a run gives {_show(expected)}."
            )

    propagate(graph, example_inputs(graph)[0], record, real=False)
    if wrong:
        raise GraphError(wrong[0])


def _show(results: dict[str, ValueMeta]) -> str:
    return ", ".join(f"{n} {v.shape} {v.torch_dtype}" for n, v in results.items())


def verify_output(
    graph: MaseGraph, original: nn.Module | MaseGraph, inputs: Any, *, tolerance: float
) -> float:
    """Return the largest absolute difference between the outputs of `graph` and `original`."""
    bound = bind_inputs(graph, inputs, "verify")
    module = original.model if isinstance(original, MaseGraph) else original
    actual, expected = run_tensors(graph.model, bound), run_tensors(module, bound)
    if [t.shape for t in actual] != [t.shape for t in expected]:
        raise GraphError(
            f"the graph gives {_shapes(actual)}; the original gives {_shapes(expected)}."
        )
    difference = max((_distance(a, b) for a, b in zip(actual, expected, strict=True)), default=0.0)
    if not difference <= tolerance:  # so that a NaN fails
        raise GraphError(
            f"the graph's output differs from the original's by {difference:g}, "
            f"more than the tolerance {tolerance:g}."
        )
    return difference


def _shapes(tensors: list[Tensor]) -> str:
    return ", ".join(str(list(t.shape)) for t in tensors) or "no tensors"


def run_tensors(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors of `model` in evaluation mode; the model stays unchanged."""
    with undisturbed(model):
        return list(tensors_in(model(**inputs)))


def _distance(a: Tensor, b: Tensor) -> float:
    if a.numel() == 0:
        return 0.0
    same = (a == b) | (a.isnan() & b.isnan())  # equal infinities differ by NaN otherwise
    return float(torch.where(same, 0.0, (a.double() - b.double()).abs()).max())
