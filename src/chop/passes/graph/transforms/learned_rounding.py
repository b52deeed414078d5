"""Learn how weights are rounded, a block of layers at a time, from what the block gives."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.log import get_logger
from chop.nn.modules.masked import stored_weight
from chop.passes.base import PassResult, graph_pass
from chop.passes.graph.transforms.gptq import gptq_transform_pass
from chop.passes.ptq.observe.calibration_data import calibration_batches
from chop.passes.ptq.observe.reference_run import PairedRun
from chop.passes.ptq.sites.layer_blocks import Block, blocks
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

LOOKS = 4
"""How often the error over all batches is looked at: the best weights seen are kept."""


@dataclass(frozen=True)
class LearnedRoundingArgs:
    """`data`: batches to learn from, an iterable or a function that gives one; `num_samples`: stop
    after so many rows. `steps`: of descent for each block, each on one batch, drawn by `seed`.
    `reach`: how many steps of its format a weight may be moved before it is rounded.
    `layers_per_block`: the fewest quantised layers of a block. `start`: from the weights as they
    are, or as `gptq_transform_pass` would round them. `keep`: a folder to keep finished blocks in:
    an interrupted run goes on there.
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
            if getattr(self, name) < 1:
                given = getattr(self, name)
                raise ConfigError(f"learned_rounding.{name}: must be at least 1, got {given}.")
        if not 0 < self.reach <= 2:
            raise ConfigError(f"learned_rounding.reach: must lie in (0, 2], got {self.reach}.")


@graph_pass("learned_rounding_transform_pass", LearnedRoundingArgs, rewrites=True, preserves=False)
def learned_rounding_transform_pass(graph: MaseGraph, args: LearnedRoundingArgs) -> PassResult:
    """Learn the rounding of quantised weights and the ranges of integers, block by block.

        quantize_transform_pass(mg, {"linear": {"config": {"name": "mxint", "weight_width": 4}}})
        learned_rounding_transform_pass(mg, {"data": batches})

    A block is a stretch of the graph after which one value alone goes on that depends on quantised
    layers: a layer of a chain, one half of a transformer's layer. Its output is brought close to
    what the float model has there, by descent along the signs of gradients, on inputs as the blocks
    before give them by then. Every weight stays a value of its format; a block whose error does
    not fall keeps its weights, and a weight that other nodes share is left to plain rounding.
    `info["blocks"]` has the signal-to-noise ratio of each block's output in dB, before and after.
    """
    layers = layers_with_own_weights(graph, "learned_rounding")
    where = "learned_rounding.data"
    batches = calibration_batches(args.data, args.num_samples, where)
    found = list(blocks(graph, layers, args.layers_per_block))
    weights: dict[nn.Module, nn.Parameter] = {layer: stored_weight(layer) for _, layer in layers}
    kept = layer_checkpoints(args.keep, graph, batches, args, "learned_rounding")
    if args.start == "gptq":
        gptq_transform_pass(graph, {"data": batches, "keep": args.keep})
    records = []
    with PairedRun(graph, batches, where, weights) as run:
        for number, block in enumerate(found, 1):
            named = {str(node.target): layer for node, layer in block.layers}
            logger.info("learned_rounding: block %d of %d, %s", number, len(found), [*named])
            done = kept.find(named, f"{number:05}")
            if done:
                records.append(done.restore(named))
                continue
            told = {"modules": [*named], **_learn(block, run, args, len(batches))}
            records.append(kept.put(named, f"{number:05}", told))
    for node, _ in layers:
        annotate_formats(node)
    return graph, {"blocks": records}


def _learn(block: Block, run: PairedRun, args: LearnedRoundingArgs, count: int) -> dict[str, Any]:
    """Learn the weights of one block; the errors before and after."""
    run.now.advance(block.start)
    run.advance_before(block.end)
    weights = [
        LearnedWeight(layer, grid, wide_weight(layer), kept_places(layer), args.reach)
        for node, layer in block.layers
        for grid in (layer_grid(layer, f"learned_rounding: '{node.target}'"),)
    ]
    plain = _errors(block, run, count)
    draw = random.Random(args.seed)
    best, least = [w.state() for w in weights], plain
    for step in range(args.steps):
        with torch.enable_grad(), _all_in_place(weights):
            _loss(block, run, draw.randrange(count))[0].backward()  # type: ignore[no-untyped-call]
        for weight in weights:
            weight.step(2 * args.reach / args.steps * (1 - step / args.steps))
        if (step + 1) % max(1, args.steps // LOOKS) == 0 or step + 1 == args.steps:
            with _all_in_place(weights):
                error = _errors(block, run, count)
            if error[0] < least[0]:
                best, least = [w.state() for w in weights], error
    if least[0] < plain[0]:
        for weight, state in zip(weights, best, strict=True):
            weight.restore(state)
            put_rounded(weight.layer, weight.grid, *weight.result())
    return {"before": decibels(plain[1], plain[0]), "after": decibels(least[1], least[0])}


@contextlib.contextmanager
def _all_in_place(weights: Sequence[LearnedWeight]) -> Any:
    with contextlib.ExitStack() as stack:
        for weight in weights:
            stack.enter_context(weight.in_place())
        yield


def _errors(block: Block, run: PairedRun, count: int) -> tuple[float, float]:
    """The error of the block over all batches, and the power of what it should give."""
    parts = [_loss(block, run, batch) for batch in range(count)]
    return sum(float(e) for e, _ in parts), sum(s for _, s in parts)


def _loss(block: Block, run: PairedRun, batch: int) -> tuple[Tensor, float]:
    """The squared error of what the block gives on one batch, and the power of what it should."""
    wanted = run.before.values(batch, block.results)
    given = run.now.replay(batch, block.end, block.results)
    error, power = torch.zeros(()), 0.0
    for y, target in zip(given, wanted, strict=True):
        if isinstance(y, Tensor) and y.is_floating_point():
            error = error + (y - target).float().square().sum()
            power += float(target.float().square().sum())
    return error, power
