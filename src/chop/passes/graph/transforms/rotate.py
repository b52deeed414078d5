"""Rotate the values between layers, so that no channel is much larger than the others."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op, node_module
from chop.log import get_logger
from chop.nn.modules.rotation import Rotation
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.base import PassResult, graph_pass
from chop.passes.ptq.sites.channel_flow import (
    ExampleRun,
    RefusedError,
    Trail,
    apply_change,
    centring,
    check_calls,
    follow,
    is_layer,
    is_same,
    rotation,
    writers_behind,
)
from chop.passes.ptq.sites.norm_folding import (
    ScaledNorm,
    centres,
    find_norms,
    fold,
    readers_of,
    without_mean,
)
from chop.passes.ptq.solve.hadamard import Kind, fixing_ones, orthogonal
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.lift_layers import lift_products

logger = get_logger(__name__)
WHO = "rotate"
LINEAR = ("linear",)


@dataclass(frozen=True)
class RotateArgs:
    """Settings of `rotate_transform_pass`.

    `kind`: a Hadamard matrix, if one of the size is known, or a random orthogonal one. `seed`:
    draws the signs or the matrix. `heads`: also rotate values within heads. `online`: also rotate
    at run time the inputs of the layers that write the residual stream, which no weight can do.
    """

    kind: Kind = "hadamard"
    seed: int = 0
    heads: bool = True
    online: bool = False


@dataclass
class RotationReport:
    """Rotated residual streams, pairs within heads and layers online, and the refused norms."""

    streams: list[dict[str, Any]] = field(default_factory=list)
    heads: list[dict[str, Any]] = field(default_factory=list)
    online: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    who: str = WHO  # named in warnings of weights that are no longer shared


@graph_pass("rotate_transform_pass", RotateArgs, rewrites=True)
def rotate_transform_pass(graph: MaseGraph, args: RotateArgs) -> PassResult:
    """Multiply the residual stream by an orthogonal matrix, folded into weights.

        rotate_transform_pass(mg)
        quantize_transform_pass(mg, {"linear": {"config": {"name": "mxint", "weight_width": 4}}})

    Run it before quantising. Outputs stay the same up to rounding, and values that a few channels
    dominated spread over all of them. The scales of norms are first folded into the layers behind
    them. For norms that subtract the mean, the writers of the stream are centred, and RMSNorm
    replaces the norms. The weights that write and read a stream are found by running the graph on
    its example inputs, with and without a change: any model of pre-norm layers can be rotated, and
    values within heads. Tied weights are separated, with a warning; the model that the graph was
    captured from keeps its own. If nothing can be rotated (a norm's output that is added again, as
    in BERT), an error names the node. `info` has `streams`, `heads`, `online` with their modules,
    and `refused`.
    """
    if any(isinstance(m, QuantizedModule) for m in graph.model.modules()):
        raise ConfigError("rotate: the graph has quantised layers. Rotate before quantising.")
    shared = {id(t): t for t in (*graph.model.parameters(), *graph.model.buffers())}
    # a trial, whose weights are freed at once: an error leaves the graph as it was
    _rotate(copy.deepcopy(graph, shared), args, RotationReport(who=""))
    report = _rotate(graph, args, RotationReport())
    for node, why in report.refused.items():
        logger.warning("rotate: not what '%s' is given: %s.", node, why)
    refresh(graph)
    return graph, {k: v for k, v in vars(report).items() if k != "who"}


def _rotate(graph: MaseGraph, args: RotateArgs, report: RotationReport) -> RotationReport:
    lift_products(graph)
    run = ExampleRun(graph, WHO)
    before = _results(run)
    norms = _folded(run, report)
    for size in dict.fromkeys(norm.size for norm in norms):
        _rotate_stream(graph, [n for n in norms if n.size == size], args, report)
    if args.heads:
        _rotate_heads(graph, args, report)
    if not report.streams and not report.heads:
        why = next(iter(report.refused.items()), ("the graph", "it has no norm with a scale"))
        raise ConfigError(f"rotate: nothing can be rotated; of {why[0]}: {why[1]}.")
    graph.recompile()
    if not is_same(_results(ExampleRun(graph, WHO)), before, slack=10):
        raise ConfigError(
            "rotate: the model's results would change by more than rounding. "
            "Leave this model as it is."
        )
    return report


def _results(run: ExampleRun) -> list[Any]:
    output = run.nodes[-1]
    return [run.values[n] for n in output.all_input_nodes if isinstance(run.values[n], Tensor)]


def _folded(run: ExampleRun, report: RotationReport) -> list[ScaledNorm]:
    """Fold the scales of all norms that allow it; return these norms."""
    trails = []
    for norm in find_norms(run):
        try:
            trails.append((norm, readers_of(run, norm)))
        except RefusedError as error:
            report.refused[norm.node.name] = f"its scale cannot be folded: {error}"
    for norm, trail in trails:
        fold(run.graph, norm, trail, report.who)
    return [norm for norm, _ in trails]


def _rotate_stream(
    graph: MaseGraph, norms: Sequence[ScaledNorm], args: RotateArgs, report: RotationReport
) -> None:
    """Rotate the inputs of all norms of one size."""
    size = norms[0].size
    run = ExampleRun(graph, WHO)
    trail = _stream(run, norms, size, report)
    on_stream = [norm for norm in norms if norm.operand in trail.dims]
    if not trail.writers or not trail.readers:
        return
    if any(centres(norm) for norm in on_stream):
        others = _other_norms(run, trail, on_stream)
        if others:
            report.refused[others[0].name] = "it takes a mean away, and keeps a scale of its own"
            return
        apply_change(graph, centring(size), Trail(trail.writers), report.who)
        for norm in on_stream:
            without_mean(graph, norm)
        run = ExampleRun(graph, WHO)
    change = rotation(orthogonal(size, args.kind, args.seed))
    try:
        trail = follow(run, change, trail.writers)
    except RefusedError as error:
        raise ConfigError(f"rotate: a stream of size {size}: {error}.") from error
    apply_change(graph, change, trail, report.who)
    report.streams.append({"size": size, **_names(trail)})


def _other_norms(run: ExampleRun, trail: Trail, norms: Sequence[ScaledNorm]) -> list[fx.Node]:
    """Return the layers that normalise the stream besides `norms`."""
    own = {norm.node for norm in norms}
    return [
        node
        for node in run.nodes
        if node.op == "call_module" and node not in own
        if (op := find_op(node)) is not None and op.dims == "norm_last"
        if node.all_input_nodes[0] in trail.dims
    ]


def _names(trail: Trail) -> dict[str, list[str]]:
    return {
        "writers": [str(n.target) for n in trail.writers],
        "readers": [str(n.target) for n in trail.readers],
    }


def _stream(
    run: ExampleRun, norms: Sequence[ScaledNorm], size: int, report: RotationReport
) -> Trail:
    """Return the writers and readers of the norms' inputs, by a trial change that keeps means."""
    change, trail = rotation(fixing_ones(size, 0)), Trail({})
    for norm in norms:
        writers = writers_behind(run, norm.operand, size)
        if norm.operand in trail.dims or not writers:
            continue
        try:
            longer = follow(run, change, {**trail.writers, **writers})
            check_calls(run.graph, longer)
            trail = longer
        except RefusedError as error:
            report.refused[norm.node.name] = str(error)
    return trail


def _rotate_heads(graph: MaseGraph, args: RotateArgs, report: RotationReport) -> None:
    """Rotate the values of attention within each head, from the layer that makes them."""
    run = ExampleRun(graph, WHO)
    rotated: set[fx.Node] = set()
    for node, size in _heads(run):
        change = rotation(orthogonal(size, args.kind, args.seed))
        try:
            trail = follow(run, change, {node: run.values[node].dim() - 1}, extend=False)
            if trail.readers and not rotated.intersection(trail.readers):
                apply_change(graph, change, trail, report.who)
                rotated.update(trail.readers)
                report.heads.append({"size": size, **_names(trail)})
        except RefusedError:
            continue  # queries and keys, gates: nothing to report
    if args.online:
        _rotate_online(graph, run, rotated, args, report)


def _heads(run: ExampleRun) -> Iterator[tuple[fx.Node, int]]:
    """Yield layers whose result is viewed in runs, with the length of a run."""
    for node in run.nodes:
        if not is_layer(node, LINEAR):
            continue
        whole = run.values[node]
        for user in node.users:
            view = run.values.get(user)
            if not isinstance(view, Tensor) or view.numel() != whole.numel():
                continue
            if view.dim() > whole.dim() and whole.shape[-1] % view.shape[-1] == 0:
                yield node, view.shape[-1]
                break


def _rotate_online(
    graph: MaseGraph,
    run: ExampleRun,
    rotated: set[fx.Node],
    args: RotateArgs,
    report: RotationReport,
) -> None:
    """Rotate at run time before layers that write a stream and read nothing rotated."""
    names = {name for stream in report.streams for name in stream["writers"]}
    for node in run.nodes:
        if not is_layer(node, LINEAR) or str(node.target) not in names or node in rotated:
            continue
        source = node.all_input_nodes[0]
        matrix = orthogonal(run.values[source].shape[-1], args.kind, args.seed)
        apply_change(graph, rotation(matrix), Trail({}, [node]), report.who)
        target = f"{str(node.target).replace('.', '_')}_rotation"
        weight: Any = node_module(node).weight
        graph.model.add_submodule(target, Rotation(matrix.to(weight)))
        with graph.fx_graph.inserting_before(node):
            node.replace_input_with(source, graph.fx_graph.call_module(target, (source,)))
        report.online.append(str(node.target))
