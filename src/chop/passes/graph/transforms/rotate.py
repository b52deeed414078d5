"""Rotate what layers give each other, so that no channel is much larger than the rest."""

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
    centring,
    follow,
    is_layer,
    is_same,
    rotation,
    writers_behind,
)
from chop.passes.ptq.sites.norm_folding import (
    Norm,
    centres,
    find_norms,
    fold,
    readers_of,
    without_mean,
)
from chop.passes.ptq.sites.weight_updates import apply_change, check_calls
from chop.passes.ptq.solve.hadamard import Kind, fixing_ones, orthogonal
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.lift_products import lift_products

logger = get_logger(__name__)
WHO = "rotate"
LINEAR = ("linear",)


@dataclass(frozen=True)
class RotateArgs:
    """`kind`: Hadamard's matrix where one of the size is known, or a random orthogonal one; `seed`
    draws signs or matrix. `heads`: rotate within the heads of values too. `online`: also rotate,
    at run time, what the layers are given that write the residual stream, which no weight can.
    """

    kind: Kind = "hadamard"
    seed: int = 0
    heads: bool = True
    online: bool = False


@dataclass
class Done:
    """What has been rotated: the residual streams by size, the pairs within heads, layers online,
    and why norms were left alone."""

    streams: list[dict[str, Any]] = field(default_factory=list)
    heads: list[dict[str, Any]] = field(default_factory=list)
    online: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    who: str = WHO  # warns of weights that are no longer shared


@graph_pass("rotate_transform_pass", RotateArgs, rewrites=True)
def rotate_transform_pass(graph: MaseGraph, args: RotateArgs) -> PassResult:
    """Multiply the residual stream by an orthogonal matrix, folded into weights; run it before
    quantising.

        rotate_transform_pass(mg)
        quantize_transform_pass(mg, {"linear": {"config": {"name": "mxint", "weight_width": 4}}})

    Outputs stay the same up to rounding, and values that a few channels dominated spread over all
    of them. The scales of norms go into the layers behind them first; where norms take the mean
    away, what writes the stream is centred, and RMSNorm takes their place. Which weights write a
    stream and which read it is found by running the graph on its example inputs, as it is and
    changed: any model of pre-norm layers can be rotated, and values within heads. A weight that was
    tied to another is no longer, with a warning; the model the graph was made from keeps its own.
    Where nothing can be rotated (a norm's output that is added again, as in BERT) an error says at
    which node. `info` has `streams`, `heads`, `online` with the modules concerned, and `refused`.
    """
    if any(isinstance(m, QuantizedModule) for m in graph.model.modules()):
        raise ConfigError("rotate: the graph has quantised layers. Rotate before quantising.")
    shared = {id(t): t for t in (*graph.model.parameters(), *graph.model.buffers())}
    trial = copy.deepcopy(graph, shared)
    _rotate(trial, args, Done(who=""))  # an error leaves the graph as it was
    done = _rotate(graph, args, Done())
    for node, why in done.refused.items():
        logger.warning("rotate: not what '%s' is given: %s.", node, why)
    refresh(graph)
    return graph, {k: v for k, v in vars(done).items() if k != "who"}


def _rotate(graph: MaseGraph, args: RotateArgs, done: Done) -> Done:
    lift_products(graph)
    run = ExampleRun(graph, WHO)
    before = _results(run)
    norms = _folded(run, done)
    for size in dict.fromkeys(norm.size for norm in norms):
        _rotate_stream(graph, [n for n in norms if n.size == size], args, done)
    if args.heads:
        _rotate_heads(graph, args, done)
    if not done.streams and not done.heads:
        why = next(iter(done.refused.items()), ("the graph", "it has no norm with a scale"))
        raise ConfigError(f"rotate: nothing can be rotated; of {why[0]}: {why[1]}.")
    graph.recompile()
    if not is_same(_results(ExampleRun(graph, WHO)), before, slack=10):
        raise ConfigError(
            "rotate: the model's results would change by more than rounding. "
            "Leave this model as it is."
        )
    return done


def _results(run: ExampleRun) -> list[Any]:
    output = run.nodes[-1]
    return [run.values[n] for n in output.all_input_nodes if isinstance(run.values[n], Tensor)]


def _folded(run: ExampleRun, done: Done) -> list[Norm]:
    """Fold the scales of all norms that can be; these."""
    found = []
    for norm in find_norms(run):
        try:
            found.append((norm, readers_of(run, norm)))
        except RefusedError as error:
            done.refused[norm.node.name] = f"its scale cannot be folded: {error}"
    for norm, trail in found:
        fold(run.graph, norm, trail, done.who)
    return [norm for norm, _ in found]


def _rotate_stream(graph: MaseGraph, norms: Sequence[Norm], args: RotateArgs, done: Done) -> None:
    """Rotate what all norms of one size are given."""
    size = norms[0].size
    run = ExampleRun(graph, WHO)
    trail = _stream(run, norms, size, done)
    on_stream = [norm for norm in norms if norm.operand in trail.dims]
    if not trail.writers or not trail.readers:
        return
    if any(centres(norm) for norm in on_stream):
        others = _other_norms(run, trail, on_stream)
        if others:
            done.refused[others[0].name] = "it takes a mean away, and keeps a scale of its own"
            return
        apply_change(graph, centring(size), Trail(trail.writers), done.who)
        for norm in on_stream:
            without_mean(graph, norm)
        run = ExampleRun(graph, WHO)
    change = rotation(orthogonal(size, args.kind, args.seed))
    try:
        trail = follow(run, change, trail.writers)
    except RefusedError as error:
        raise ConfigError(f"rotate: a stream of size {size}: {error}.") from error
    apply_change(graph, change, trail, done.who)
    done.streams.append({"size": size, **_names(trail)})


def _other_norms(run: ExampleRun, trail: Trail, norms: Sequence[Norm]) -> list[fx.Node]:
    """Layers that normalise the stream besides `norms`."""
    known = {norm.node for norm in norms}
    return [
        node
        for node in run.nodes
        if node.op == "call_module"
        and (op := find_op(node)) is not None
        and op.dims == "norm_last"
        and node not in known
        and node.all_input_nodes[0] in trail.dims
    ]


def _names(trail: Trail) -> dict[str, list[str]]:
    return {
        "writers": [str(n.target) for n in trail.writers],
        "readers": [str(n.target) for n in trail.readers],
    }


def _stream(run: ExampleRun, norms: Sequence[Norm], size: int, done: Done) -> Trail:
    """What writes and reads the values that norms are given. Means are kept while we look."""
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
            done.refused[norm.node.name] = str(error)
    return trail


def _rotate_heads(graph: MaseGraph, args: RotateArgs, done: Done) -> None:
    """Rotate the values of attention within each head, from the layer that makes them."""
    run = ExampleRun(graph, WHO)
    taken: set[fx.Node] = set()
    for node, size in _heads(run):
        change = rotation(orthogonal(size, args.kind, args.seed))
        try:
            trail = follow(run, change, {node: run.values[node].dim() - 1}, extend=False)
            if trail.readers and not taken.intersection(trail.readers):
                apply_change(graph, change, trail, done.who)
                taken.update(trail.readers)
                done.heads.append({"size": size, **_names(trail)})
        except RefusedError:
            continue  # queries and keys, gates: there is nothing to tell
    if args.online:
        _rotate_online(graph, run, taken, args, done)


def _heads(run: ExampleRun) -> Iterator[tuple[fx.Node, int]]:
    """Layers whose result is viewed in runs, with their length."""
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
    graph: MaseGraph, run: ExampleRun, taken: set[fx.Node], args: RotateArgs, done: Done
) -> None:
    """Rotate at run time before layers that write a stream and read nothing rotated."""
    names = {name for stream in done.streams for name in stream["writers"]}
    for node in run.nodes:
        if not is_layer(node, LINEAR) or str(node.target) not in names or node in taken:
            continue
        source = node.all_input_nodes[0]
        matrix = orthogonal(run.values[source].shape[-1], args.kind, args.seed)
        apply_change(graph, rotation(matrix), Trail({}, [node]), done.who)
        target = f"{str(node.target).replace('.', '_')}_rotation"
        weight: Any = node_module(node).weight
        graph.model.add_submodule(target, Rotation(matrix.to(weight)))
        with graph.fx_graph.inserting_before(node):
            rotated = graph.fx_graph.call_module(target, (source,))
        node.replace_input_with(source, rotated)
        done.online.append(str(node.target))
