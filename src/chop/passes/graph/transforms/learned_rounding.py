"""Learn the rounding of weights, one block of layers at a time, from the block's output.

Blocks are found from data flow and not from names. A cut is a place in the order of nodes where
only one value is still to be read that is an operand of a quantised layer or depends on one: in a
transformer between attention and feed-forward (the residual stream), in a chain between any layers.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.dims import FACTS
from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op
from chop.log import get_logger, log_step
from chop.nn.modules.masked import stored_weight
from chop.nn.quantized.layer import QuantizedModule
from chop.passes.base import PassResult, graph_pass
from chop.passes.graph.transforms.gptq import gptq_transform_pass
from chop.passes.ptq.observe.carried_batch import changed_inputs
from chop.passes.ptq.observe.held_back import (
    KEPT,
    METHOD,
    NEAREST,
    RowSplit,
    checked_fit,
    fitted_rows,
    note_fallbacks,
)
from chop.passes.ptq.observe.layerwise_run import PairedRun, calibration_batches
from chop.passes.ptq.sites.layer_checkpoints import layer_checkpoints
from chop.passes.ptq.sites.rounded_layers import (
    decibels,
    kept_places,
    layer_grid,
    layers_with_own_weights,
    put_rounded,
    wide_weight,
)
from chop.passes.ptq.solve.learned_weight import LearnedWeight
from chop.passes.rewrite.node_formats import annotate_formats

logger = get_logger(__name__)

CHECKS = 4
"""Number of times that the error over all batches is measured; the best weights are used."""


@dataclass(frozen=True)
class LearnedRoundingArgs:
    """Settings of `learned_rounding_transform_pass`.

    `data`: batches to learn from, an iterable or a function that returns one. `num_samples`: rows
    to use. `steps`: descent steps per block, each on one batch, drawn by `seed`. `reach`: largest
    offset of a weight before rounding, in steps of its format. `layers_per_block`: the fewest
    quantised layers of a block. `start`: from the current weights, or from those that
    `gptq_transform_pass` rounds. `keep`: a folder for checkpoints of finished blocks, from which an
    interrupted run resumes.
    """

    data: Any = None
    num_samples: int | None = None
    steps: int = 200
    reach: float = 0.5
    layers_per_block: int = 1
    seed: int = 0
    start: Literal["nearest", "gptq"] = "nearest"
    keep: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "layers_per_block"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"learned_rounding.{name}: must be at least 1, got {value}.")
        if not 0 < self.reach <= 2:
            raise ConfigError(f"learned_rounding.reach: must lie in (0, 2], got {self.reach}.")


@graph_pass("learned_rounding_transform_pass", LearnedRoundingArgs, rewrites=True, preserves=False)
def learned_rounding_transform_pass(graph: MaseGraph, args: LearnedRoundingArgs) -> PassResult:
    """Learn the rounding of quantised weights and the ranges of integers, block by block.

        quantize_transform_pass(mg, {"linear": {"config": {"name": "mxint", "weight_width": 4}}})
        learned_rounding_transform_pass(mg, {"data": batches})

    A block is a part of the graph after which only one value depends on quantised layers: a layer
    of a chain, one half of a transformer's layer. Descent along the signs of gradients brings its
    output close to that of the float model, on the outputs of the blocks before it. Every weight
    stays a value of its format. One row in eight is held back: a block whose error does not fall,
    or rises on these rows, keeps its weights. A weight that other nodes share is rounded plainly.
    `info["blocks"]` has the signal-to-noise ratio of each block's output in dB, before and after,
    and what was `kept`.
    """
    layers = layers_with_own_weights(graph, "learned_rounding")
    where = "learned_rounding.data"
    batches = calibration_batches(args.data, args.num_samples, where)
    stages = list(blocks(graph, layers, args.layers_per_block, changed_inputs(batches)))
    weights: dict[nn.Module, nn.Parameter] = {layer: stored_weight(layer) for _, layer in layers}
    checkpoints = layer_checkpoints(args.keep, graph, batches, args, "learned_rounding")
    if args.start == "gptq":
        gptq_transform_pass(graph, {"data": batches, "keep": args.keep})
    records = []
    with PairedRun(graph, batches, where, weights) as run:
        for number, block in enumerate(stages, 1):
            named = {str(node.target): layer for node, layer in block.layers}
            log_step(logger, "learned_rounding: block", number, len(stages), str([*named]))
            stored = checkpoints.find(named, f"{number:05}")
            if stored:
                records.append(stored.restore(named))
                continue
            record = {"modules": [*named], **_learn(block, run, args, len(batches))}
            records.append(checkpoints.put(named, f"{number:05}", record))
    for node, _ in layers:
        annotate_formats(node)
    note_fallbacks(logger, records, "learned_rounding")
    return graph, {"blocks": records}


State = tuple[Tensor, Tensor]
Rows = Mapping[int, slice]
"""The rows of each batch, by the batch's number."""


def _learn(block: Block, run: PairedRun, args: LearnedRoundingArgs, count: int) -> dict[str, Any]:
    """Learn the weights of one block; return the errors before and after."""
    run.now.advance(block.start)
    run.advance_before(block.end)
    weights = [
        LearnedWeight(layer, grid, wide_weight(layer), kept_places(layer), args.reach)
        for node, layer in block.layers
        for grid in (layer_grid(layer, f"learned_rounding: '{node.target}'"),)
    ]

    def error(states: Sequence[State] | None, rows: Rows) -> float:
        if states is None:
            return _errors(block, run, rows)[0]
        for weight, state in zip(weights, states, strict=True):
            weight.restore(state)
        with _all_in_place(weights):
            return _errors(block, run, rows)[0]

    whole, split = _split_rows(block, run, count)
    plain, power = _errors(block, run, whole)
    states = checked_fit(lambda rows: _descend(block, run, weights, rows, args), error, split)
    after = plain if states is None else min(plain, error(states, whole))
    if after < plain:
        for weight in weights:  # `error` has restored the states
            put_rounded(weight.layer, weight.grid, *weight.result())
    return {
        "before": decibels(power, plain),
        "after": decibels(power, after),
        KEPT: METHOD if after < plain else NEAREST,
    }


def _split_rows(block: Block, run: PairedRun, count: int) -> tuple[Rows, RowSplit[Rows]]:
    """Return the rows of all batches, and their split; the last rows of all are held back."""
    sizes = [_row_count(run.before.values(batch, block.results)) for batch in range(count)]
    left, fitted, held_back = fitted_rows(sum(sizes)), {}, {}
    for batch, size in enumerate(sizes):
        end = min(left, size)
        left -= end
        if end:
            fitted[batch] = slice(0, end)
        if end < size:
            held_back[batch] = slice(end, size)
    whole = {batch: slice(0, size) for batch, size in enumerate(sizes)}
    return whole, RowSplit(fitted, held_back or None)


def _row_count(values: Sequence[Any]) -> int:
    """Return the length of the first dimension that all tensors share; 1 if they share none."""
    lengths = {len(v) if v.dim() else 1 for v in values if isinstance(v, Tensor)}
    return lengths.pop() if len(lengths) == 1 else 1


def _descend(
    block: Block,
    run: PairedRun,
    weights: Sequence[LearnedWeight],
    rows: Rows,
    args: LearnedRoundingArgs,
) -> list[State]:
    """Return the states with the least error on `rows`, among those that descent visits."""
    draw, batches = random.Random(args.seed), [*rows]
    best, least = [w.state() for w in weights], _errors(block, run, rows)[0]
    for step in range(args.steps):
        with torch.enable_grad(), _all_in_place(weights):
            batch = batches[draw.randrange(len(batches))]
            _loss(block, run, batch, rows[batch])[0].backward()  # type: ignore[no-untyped-call]
        for weight in weights:
            weight.step(2 * args.reach / args.steps * (1 - step / args.steps))
        if (step + 1) % max(1, args.steps // CHECKS) == 0 or step + 1 == args.steps:
            with _all_in_place(weights):
                error = _errors(block, run, rows)[0]
            if error < least:
                best, least = [w.state() for w in weights], error
    return best


@contextlib.contextmanager
def _all_in_place(weights: Sequence[LearnedWeight]) -> Any:
    with contextlib.ExitStack() as stack:
        for weight in weights:
            stack.enter_context(weight.in_place())
        yield


def _errors(block: Block, run: PairedRun, rows: Rows) -> tuple[float, float]:
    """Return the error of the block over `rows`, and the power of the target."""
    parts = [_loss(block, run, batch, inside) for batch, inside in rows.items()]
    return sum(float(e) for e, _ in parts), sum(s for _, s in parts)


def _loss(block: Block, run: PairedRun, batch: int, rows: slice) -> tuple[Tensor, float]:
    """Return the squared error of the block's output on one batch, and the power of the target."""
    targets = run.before.values(batch, block.results)
    outputs = run.now.replay(batch, block.end, block.results)
    is_split = _row_count(targets) > 1
    error, power = torch.zeros(()), 0.0
    for y, target in zip(outputs, targets, strict=True):
        if isinstance(y, Tensor) and y.is_floating_point():
            if is_split:
                y, target = y[rows], target[rows]
            error = error + (y - target).float().square().sum()
            power += float(target.float().square().sum())
    return error, power


@dataclass(frozen=True)
class Block:
    """Nodes from `start` up to but excluding `end`, their layers, and the results others read."""

    start: fx.Node
    end: fx.Node
    layers: tuple[tuple[fx.Node, QuantizedModule], ...]
    results: tuple[fx.Node, ...]


def blocks(
    graph: MaseGraph,
    layers: Sequence[tuple[fx.Node, QuantizedModule]],
    least: int,
    inputs: Collection[str] = (),
) -> Iterator[Block]:
    """Yield the graph from its first to its last of `layers`, in blocks of at least `least`.

    `inputs`: names of the graph's inputs that depend on quantised layers of another graph.
    """
    nodes = list(graph.fx_graph.nodes)
    by_node = dict(layers)
    changed = _changed(nodes, by_node, inputs)
    place = {node: i for i, node in enumerate(nodes)}
    last = {node: max((place[user] for user in node.users), default=-1) for node in nodes}
    alive: list[fx.Node] = []
    inside: list[tuple[fx.Node, QuantizedModule]] = []
    start = 0
    for i, node in enumerate(nodes[:-1]):
        inside += [(node, by_node[node])] if node in by_node else []
        alive = [n for n in (*alive, node) if n in changed and last[n] > i]
        is_end = nodes[i + 1].op == "output" or (len(alive) == 1 and len(inside) >= least)
        if inside and is_end:
            yield Block(nodes[start], nodes[i + 1], tuple(inside), tuple(alive))
            start, inside = i + 1, []


def _changed(
    nodes: Sequence[fx.Node], layers: Mapping[fx.Node, object], inputs: Collection[str]
) -> set[fx.Node]:
    """Return the layers, their operands and everything that depends on them but sizes and types."""
    changed = {source for node in layers for source in node.all_input_nodes}.union(layers)
    changed |= {node for node in nodes if node.op == "placeholder" and node.target in inputs}
    for node in nodes:
        op = None if node.op == "output" else find_op(node)
        reads_facts = op is not None and op.dims == FACTS
        if not reads_facts and any(n in changed for n in node.all_input_nodes):
            changed.add(node)
    return changed
