"""Pruning by calibration data: layer by layer, each on the outputs of the pruned layers before it.

SparseGPT prunes weights column by column, so that the layer's output changes least. A weight set to
zero is an error like a rounded one; the weights to prune are selected a few columns at a time. A
layer that several nodes call is pruned after its last call, by the inputs of all calls.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError, PassError
from chop.ir.graph import MaseGraph
from chop.ir.reclass import mask_name, reclassed
from chop.log import get_logger, log_step
from chop.nn.modules.masked import WEIGHT, stored_weight
from chop.passes.prune.granularity import (
    block_shape,
    check_n_of_m,
    keep_largest_of_rows,
    keep_n_of_m,
    n_of_m,
)
from chop.passes.prune.importance import METHODS, score
from chop.passes.prune.prunable_layers import add_mask, mask_of, prunable_nodes
from chop.passes.prune.pruning_config import PruneArgs, PruneWeight
from chop.passes.prune.weight_masks import Layers, chosen_layers, masks_of, put_masks, ranked
from chop.passes.ptq.observe.input_sums import SharedSums
from chop.passes.ptq.observe.layer_inputs import groups_of, weight_rows
from chop.passes.ptq.observe.layerwise_run import LayerwiseRun, calibration_batches, calls_of
from chop.passes.ptq.sites.channel_flow import shared_parameters
from chop.passes.ptq.sites.layer_checkpoints import LayerCheckpoints, layer_checkpoints
from chop.passes.ptq.solve.column_feedback import (  # type: ignore[attr-defined]
    BLOCK,
    decide_columns,
    inverse_factor,
    without_dead,
)
from chop.passes.rewrite.surgery import set_module

logger = get_logger(__name__)

WHERE = "prune.batches"
MASK = mask_name(WEIGHT)
MULTIPLYING = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Layers whose inputs can be laid out as the rows that their weights are multiplied with."""


class InputProducts(SharedSums[Tensor]):
    """Sums over all rows x of the data, for each group of a layer's inputs.

    With `products` of x xᵀ, as (groups, columns, columns); without, of the squares of x, as
    (groups, columns).
    """

    def __init__(self, run: LayerwiseRun, *, products: bool) -> None:
        self.run, self.products = run, products

    def batches(self, node: fx.Node, layer: nn.Module) -> Iterator[Tensor]:
        groups = groups_of(layer)
        for operands in self.run.operands_of_calls(calls_of(node)):
            rows = torch.cat([weight_rows(layer, x, str(node.target)) for x in operands])
            rows = rows.reshape(len(rows), groups, rows.shape[1] // groups).movedim(1, 0)
            yield (rows.mT @ rows if self.products else rows.square().sum(1)).double()


def input_norms(layer: nn.Module, squares: Tensor) -> Tensor:
    """Return the norm of the inputs of each weight, in the shape of the weight."""
    weight = stored_weight(layer)
    rows = squares.sqrt().repeat_interleave(weight.shape[0] // len(squares), 0)
    return rows.reshape(weight.shape).to(torch.float32)


def check_layer(layer: nn.Module, path: str, method: str) -> None:
    """Raise if the method is not defined for the inputs of the layer."""
    if not isinstance(layer, MULTIPLYING):
        allowed = ", ".join(kind.__name__ for kind in MULTIPLYING)
        raise PassError(
            f"prune: method '{method}' is not defined for '{path}' ({type(layer).__name__}); it is "
            f"for {allowed}. Leave the layer out with target_modules."
        )


def prune_by_inputs(graph: MaseGraph, config: PruneWeight, args: PruneArgs) -> list[str]:
    """Prune the chosen layers by a method that uses their inputs; return their paths."""
    layers = chosen_layers(graph, config.target_modules, "prune.weight.target_modules")
    _check(layers, config)
    batches = calibration_data(args, config.method)
    if config.compared_within == "global":
        squares = dict(summed_inputs(graph, layers, batches))
        scores = {path: _scores(layers[path], squares[path], config, path) for path in layers}
        put_masks(graph, layers, masks_of(scores, config))
        return list(layers)
    checkpoints = layer_checkpoints(args.keep, graph, batches, args, "prune")
    was_training = {path: layer.training for path, layer in layers.items()}
    try:
        with LayerwiseRun(graph, batches, WHERE) as run:
            LayerwisePruning(graph, layers, config, args.damping).prune(run, checkpoints)
    finally:
        for path, training in was_training.items():  # copied while the model was evaluating
            graph.model.get_submodule(path).training = training
    return list(layers)


def calibration_data(args: PruneArgs, method: str) -> list[Any]:
    """Return the calibration batches; raise if there are none."""
    if args.batches is None:
        raise ConfigError(
            f"prune: method '{method}' looks at what layers are given: give batches, an iterable "
            "of inputs like those that the graph was captured with."
        )
    return calibration_batches(args.batches, args.num_samples, WHERE)


def _check(layers: Layers, config: PruneWeight) -> None:
    """Check all layers before any is changed."""
    pair = n_of_m(config.granularity)
    for path, layer in layers.items():
        check_layer(layer, path, config.method)
        shape = tuple(stored_weight(layer).shape)
        if pair is not None:
            check_n_of_m(shape, *pair, path)
        else:
            block_shape(config.granularity, shape, config.block_size, path)


def _calls(graph: MaseGraph, layers: Layers) -> Iterator[tuple[fx.Node, bool]]:
    """Yield the nodes that call chosen layers, and True for the last call of a layer."""
    nodes = [n for n in prunable_nodes(graph) if str(n.target) in layers]
    remaining = Counter(id(layers[str(n.target)]) for n in nodes)
    for node in nodes:
        remaining[id(layers[str(node.target)])] -= 1
        yield node, not remaining[id(layers[str(node.target)])]


def summed_inputs(
    graph: MaseGraph, layers: Layers, batches: list[Any]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the sums of squares of each unpruned layer's inputs, by path."""
    totals: dict[int, Tensor] = {}
    with LayerwiseRun(graph, batches, WHERE) as run:
        sums = InputProducts(run, products=False)
        for node, is_last in _calls(graph, layers):
            layer = layers[str(node.target)]
            totals[id(layer)] = sums.of(node, layer) + totals.get(id(layer), 0)
            if is_last:
                yield from ((p, totals[id(layer)]) for p, m in layers.items() if m is layer)


def _scores(layer: nn.Module, squares: Tensor, config: PruneWeight, path: str) -> Tensor:
    norms = input_norms(layer, squares)
    return ranked(layer, score(stored_weight(layer), config.method, path, seed=0, norms=norms))


class LayerwisePruning:
    """Pruning of one layer after the other, each by its inputs behind the pruned ones."""

    def __init__(
        self, graph: MaseGraph, layers: Layers, config: PruneWeight, damping: float
    ) -> None:
        self.graph, self.layers, self.config, self.damping = graph, layers, config, damping
        self.makes_up = METHODS[config.method].makes_up
        self.shared = shared_parameters(graph) if self.makes_up else {}

    def prune(self, run: LayerwiseRun, checkpoints: LayerCheckpoints) -> None:
        """Prune all layers; load those that have a checkpoint."""
        sums, totals = InputProducts(run, products=self.makes_up), dict[int, Tensor]()
        calls = list(_calls(self.graph, self.layers))
        for number, (node, is_last) in enumerate(calls, 1):
            path, file = str(node.target), f"{number:05}"
            layer = self.layers[path]
            stored = checkpoints.find({path: layer}, file) if is_last else None
            if stored is None:
                totals[id(layer)] = sums.of(node, layer) + totals.get(id(layer), 0)
            if not is_last:
                continue
            self._warn_shared(path)
            log_step(logger, "prune: call", number, len(calls), path)
            if stored is None:
                pruned = self._pruned(path, totals.pop(id(layer)))
                checkpoints.put({path: pruned}, file, {})
            else:
                pruned = self._restored(path, stored.tensors)
            for each in (p for p, m in self.layers.items() if m is layer):
                set_module(self.graph, each, pruned)

    def _warn_shared(self, path: str) -> None:
        """Warn that the new weight is no longer shared with other layers."""
        names = self.shared.get(id(stored_weight(self.layers[path])), [])
        others = [n for n in names if n.rpartition(".")[0] not in self.layers]
        if others:
            logger.warning("prune: '%s.%s' is no longer shared with '%s'.", path, WEIGHT, others[0])

    def _pruned(self, path: str, sums: Tensor) -> nn.Module:
        layer = self.layers[path]
        if self.makes_up:
            return _with_values(layer, *_compensated(layer, sums, self.config, self.damping))
        scores = {path: _scores(layer, sums, self.config, path)}
        return add_mask(layer, masks_of(scores, self.config)[path])

    def _restored(self, path: str, tensors: Mapping[str, Tensor]) -> nn.Module:
        layer = self.layers[path]
        device = stored_weight(layer).device
        mask = tensors[f"{path}.{MASK}"].to(device)
        if not self.makes_up:
            return add_mask(layer, mask)
        return _with_values(layer, tensors[f"{path}.{WEIGHT}"].to(device), mask)


def _with_values(layer: nn.Module, values: Tensor, mask: Tensor) -> nn.Module:
    """Return `layer` with a new parameter, so that the user's model keeps its own."""
    old = stored_weight(layer)
    copy = reclassed(layer, type(layer))
    copy._parameters[WEIGHT] = nn.Parameter(values.to(old.dtype), requires_grad=old.requires_grad)
    return add_mask(copy, mask)


def _compensated(
    layer: nn.Module, hessians: Tensor, config: PruneWeight, damping: float
) -> tuple[Tensor, Tensor]:
    """Return the weight after SparseGPT and the mask of its kept elements, in its shape."""
    weight = stored_weight(layer).detach()
    pair = n_of_m(config.granularity)
    choice = PruningChoice(config.share, config.compared_within == "row", pair)
    mask = mask_of(layer)
    mask = torch.ones_like(weight, dtype=torch.bool) if mask is None else mask
    index = torch.arange(math.prod(weight.shape[1:]), device=weight.device)
    # N:M compares neighbouring input channels, so these become the innermost columns
    by_channel = index.reshape(weight.shape[1:]).movedim(0, -1).flatten()
    order = by_channel if pair is not None else index
    values, keep = weight.flatten(1).double().clone(), mask.flatten(1).clone()
    rows = len(weight) // groups_of(layer)
    for group, hessian in enumerate(hessians):
        part = slice(group * rows, (group + 1) * rows)
        operands = values[part][:, order], hessian[order][:, order], keep[part][:, order]
        values[part, order], keep[part, order] = pruned_with_feedback(*operands, choice, damping)
    return values.view_as(weight), keep.view_as(weight)


@dataclass(frozen=True)
class PruningChoice:
    """Weights to prune: `share` of each row or of all rows, or all but N of every M (`pair`)."""

    share: float
    by_row: bool = False
    pair: tuple[int, int] | None = None

    @property
    def columns(self) -> int:
        """Number of columns that are decided together."""
        return BLOCK if self.pair is None else self.pair[1]

    @property
    def block(self) -> int:
        """Number of columns between two updates of all later columns: whole decisions."""
        return max(self.columns, BLOCK - BLOCK % self.columns)

    def kept(self, scores: Tensor, dropped: Tensor) -> Tensor:
        """Return the mask of a few columns by their scores; `dropped` marks earlier pruned weights.

        Counts are rounded over all columns so far, so rounding errors do not add up.
        """
        if self.pair is not None:
            return keep_n_of_m(scores, *self.pair, "")
        rows = (scores, dropped) if self.by_row else (scores.reshape(1, -1), dropped.reshape(1, -1))
        count = round(self.share * sum(part.shape[1] for part in rows)) - rows[1].sum(1)
        already = (rows[0] == -torch.inf).sum(1)
        return keep_largest_of_rows(rows[0], torch.maximum(count, already)).view_as(scores)


def pruned_with_feedback(
    weight: Tensor, hessian: Tensor, mask: Tensor, choice: PruningChoice, damping: float
) -> tuple[Tensor, Tensor]:
    """Return the pruned weight and the mask of the kept elements, a subset of `mask`."""
    work, dropped = weight.double().clone(), ~mask
    dead = hessian.diagonal() == 0  # such inputs change nothing: their weights go first
    factor = inverse_factor(without_dead(hessian.double()), damping)
    scale = factor.diagonal().square()

    def pruned(i: int, column: Tensor) -> Tensor:
        if i % choice.columns == 0:
            now = slice(i, i + choice.columns)
            scores = (work[:, now].square() / scale[now]).masked_fill(dead[now], 0.0)
            scores = scores.masked_fill(dropped[:, now], -torch.inf)
            dropped[:, now] = ~choice.kept(scores, dropped[:, :i])
        return column.masked_fill(dropped[:, i], 0.0)

    decide_columns(work, factor, pruned, choice.block)
    return work, ~dropped
