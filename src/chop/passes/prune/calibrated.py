"""Pruning by the inputs of layers, one after the other, each behind the pruned ones before it.

A layer that several nodes call is pruned after the last of them, by the inputs of all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.reclass import mask_name, reclassed
from chop.log import get_logger
from chop.nn.modules.masked import WEIGHT, stored_weight
from chop.passes.prune.granularity import block_shape, check_n_of_m, n_of_m
from chop.passes.prune.importance import METHODS, score
from chop.passes.prune.prunable_layers import (
    add_mask,
    mask_of,
    prunable_nodes,
)
from chop.passes.prune.pruning_config import PruneArgs, PruneWeight
from chop.passes.prune.pruning_inputs import InputProducts, check_layer, input_norms
from chop.passes.prune.sparsegpt import PruningChoice, pruned_with_feedback
from chop.passes.prune.weight_masks import (
    Layers,
    chosen_layers,
    masks_of,
    put_masks,
    ranked,
)
from chop.passes.ptq.observe.calibration_data import calibration_batches
from chop.passes.ptq.observe.layer_inputs import groups_of
from chop.passes.ptq.observe.layerwise_run import LayerwiseRun
from chop.passes.ptq.sites.layer_checkpoints import LayerCheckpoints, layer_checkpoints
from chop.passes.ptq.sites.weight_updates import shared_parameters
from chop.passes.rewrite.surgery import set_module

logger = get_logger(__name__)

WHERE = "prune.batches"
MASK = mask_name(WEIGHT)


def prune_by_inputs(graph: MaseGraph, config: PruneWeight, args: PruneArgs) -> list[str]:
    """Prune the chosen layers by a method that looks at their inputs; their paths."""
    layers = chosen_layers(graph, config.target_modules, "prune.weight.target_modules")
    _check(layers, config)
    batches = given_batches(args, config.method)
    if config.compared_within == "global":
        _prune_together(graph, layers, batches, config)
        return list(layers)
    kept = layer_checkpoints(args.keep, graph, batches, args, "prune")
    was_training = {path: layer.training for path, layer in layers.items()}
    try:
        with LayerwiseRun(graph, batches, WHERE) as run:
            InTurn(graph, layers, config).prune(run, kept, args.damping)
    finally:
        for path, training in was_training.items():  # made while the model was evaluating
            graph.model.get_submodule(path).training = training
    return list(layers)


def given_batches(args: PruneArgs, method: str) -> list[Any]:
    """The calibration data; an error where there is none."""
    if args.batches is None:
        raise ConfigError(
            f"prune: method '{method}' looks at what layers are given: give batches, an iterable "
            "of inputs like those that the graph was captured with."
        )
    return calibration_batches(args.batches, args.num_samples, WHERE)


def _check(layers: Layers, config: PruneWeight) -> None:
    """Raise for any layer before one is changed."""
    pair = n_of_m(config.granularity)
    for path, layer in layers.items():
        check_layer(layer, path, config.method)
        shape = tuple(stored_weight(layer).shape)
        if pair is not None:
            check_n_of_m(shape, *pair, path)
        else:
            block_shape(config.granularity, shape, config.block_size, path)


def _calls(graph: MaseGraph, layers: Layers) -> Iterator[tuple[fx.Node, bool]]:
    """The nodes that call chosen layers, and whether each is the last that calls its layer."""
    nodes = [n for n in prunable_nodes(graph) if str(n.target) in layers]
    left = Counter(id(layers[str(n.target)]) for n in nodes)
    for node in nodes:
        left[id(layers[str(node.target)])] -= 1
        yield node, not left[id(layers[str(node.target)])]


def summed_inputs(
    graph: MaseGraph, layers: Layers, batches: list[Any]
) -> Iterator[tuple[str, Tensor]]:
    """The sums of squares of what each layer is given, by path, while no layer changes."""
    totals: dict[int, Tensor] = {}
    with LayerwiseRun(graph, batches, WHERE) as run:
        sums = InputProducts(run, products=False)
        for node, is_last in _calls(graph, layers):
            layer = layers[str(node.target)]
            totals[id(layer)] = sums.of(node, layer) + totals.get(id(layer), 0)
            if is_last:
                yield from ((p, totals[id(layer)]) for p, m in layers.items() if m is layer)


def _prune_together(
    graph: MaseGraph, layers: Layers, batches: list[Any], config: PruneWeight
) -> None:
    squares = dict(summed_inputs(graph, layers, batches))
    scores = {path: _scores(layers[path], squares[path], config, path) for path in layers}
    put_masks(graph, layers, masks_of(scores, config))


def _scores(layer: nn.Module, squares: Tensor, config: PruneWeight, path: str) -> Tensor:
    norms = input_norms(layer, squares)
    return ranked(layer, score(stored_weight(layer), config.method, path, seed=0, norms=norms))


class InTurn:
    """Prunes one layer after the other, each by its inputs when all before it are pruned."""

    def __init__(self, graph: MaseGraph, layers: Layers, config: PruneWeight) -> None:
        self.graph, self.layers, self.config = graph, layers, config
        self.makes_up = METHODS[config.method].makes_up
        self.shared = shared_parameters(graph) if self.makes_up else {}

    def prune(self, run: LayerwiseRun, kept: LayerCheckpoints, damping: float) -> None:
        """Prune all; what is in `kept` is taken from there."""
        sums, totals = InputProducts(run, products=self.makes_up), dict[int, Tensor]()
        calls = list(_calls(self.graph, self.layers))
        for number, (node, is_last) in enumerate(calls, 1):
            path, file = str(node.target), f"{number:05}"
            layer = self.layers[path]
            found = kept.find({path: layer}, file) if is_last else None
            if found is None:
                totals[id(layer)] = sums.of(node, layer) + totals.get(id(layer), 0)
            if not is_last:
                continue
            self._warn_shared(path)
            logger.info("prune: call %d of %d, %s", number, len(calls), path)
            if found is None:
                made = self._pruned(path, totals.pop(id(layer)), damping)
                kept.put({path: made}, file, {})
            else:
                made = self._as_kept(path, found.tensors)
            for each in (p for p, m in self.layers.items() if m is layer):
                set_module(self.graph, each, made)

    def _warn_shared(self, path: str) -> None:
        """Say that a weight gets values of its own where others had it too."""
        names = self.shared.get(id(stored_weight(self.layers[path])), [])
        others = [n for n in names if n.rpartition(".")[0] not in self.layers]
        if others:
            logger.warning("prune: '%s.%s' is no longer shared with '%s'.", path, WEIGHT, others[0])

    def _pruned(self, path: str, sums: Tensor, damping: float) -> nn.Module:
        layer = self.layers[path]
        if self.makes_up:
            return _with_values(layer, *_made_up(layer, sums, self.config, damping))
        scores = {path: _scores(layer, sums, self.config, path)}
        return add_mask(layer, masks_of(scores, self.config)[path])

    def _as_kept(self, path: str, tensors: Mapping[str, Tensor]) -> nn.Module:
        layer = self.layers[path]
        device = stored_weight(layer).device
        mask = tensors[f"{path}.{MASK}"].to(device)
        if not self.makes_up:
            return add_mask(layer, mask)
        return _with_values(layer, tensors[f"{path}.{WEIGHT}"].to(device), mask)


def _with_values(layer: nn.Module, values: Tensor, mask: Tensor) -> nn.Module:
    """`layer` with a parameter of its own: the model that the graph was made from keeps its."""
    old = stored_weight(layer)
    made = reclassed(layer, type(layer))
    made._parameters[WEIGHT] = nn.Parameter(values.to(old.dtype), requires_grad=old.requires_grad)
    return add_mask(made, mask)


def _made_up(
    layer: nn.Module, hessians: Tensor, config: PruneWeight, damping: float
) -> tuple[Tensor, Tensor]:
    """The weight with the rest making up for what goes, and what stays, in the weight's shape."""
    weight = stored_weight(layer).detach()
    pair = n_of_m(config.granularity)
    choice = PruningChoice(config.share, config.compared_within == "row", pair)
    mask = mask_of(layer)
    mask = torch.ones_like(weight, dtype=torch.bool) if mask is None else mask
    order = _column_order(weight, pair is not None)
    values, keep = weight.flatten(1).double().clone(), mask.flatten(1).clone()
    rows = len(weight) // groups_of(layer)
    for group, hessian in enumerate(hessians):
        part = slice(group * rows, (group + 1) * rows)
        given = values[part][:, order], hessian[order][:, order], keep[part][:, order]
        values[part, order], keep[part, order] = pruned_with_feedback(*given, choice, damping)
    return values.view_as(weight), keep.view_as(weight)


def _column_order(weight: Tensor, by_channel: bool) -> Tensor:
    """The columns of a flattened weight, input channels innermost where those are neighbours."""
    index = torch.arange(math.prod(weight.shape[1:]), device=weight.device)
    return index.reshape(weight.shape[1:]).movedim(0, -1).flatten() if by_channel else index
