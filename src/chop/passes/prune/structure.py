"""Remove channels and heads: rows and columns of every weight that shares them.

The label of a query head that shares keys and values is its place in the group that shares them
(`Coupling.by_query`). Shapes depend on places only. The order of heads within a group changes
nothing, so each group selects its own heads, the same number from every group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from chop.errors import PassError
from chop.ir.graph import MaseGraph
from chop.ir.reclass import reclassed
from chop.passes.prune.calibrated import (
    MULTIPLYING,
    calibration_data,
    check_layer,
    input_norms,
    summed_inputs,
)
from chop.passes.prune.channel_rules import find_rule
from chop.passes.prune.coupling import (
    FROZEN,
    ChannelAxes,
    Coupling,
    Labels,
    axes_in,
    couple,
    result_shapes,
)
from chop.passes.prune.granularity import keep_largest, keep_largest_of_rows
from chop.passes.prune.importance import METHODS, score
from chop.passes.prune.pruning_config import QUERY, PruneArgs, PruneWeight
from chop.passes.prune.weight_masks import chosen_layers, gradient_scores
from chop.passes.rewrite.propagate import bind_inputs
from chop.passes.rewrite.surgery import set_module

MISFIT = "the graph does not fit without the channels chosen"
REMEDY = "Leave the layers before that node out with target_modules."
SHARED_HINT = " Of query heads that share no keys and values remove a 'head'."


@dataclass(frozen=True)
class ChannelFamily:
    """Groups that the same layers make: the channels of one width, or the heads of one block.

    `sharing`: number of heads of keys and values, if a group has one query head of each; else 0.
    """

    producers: tuple[str, ...]
    groups: Labels
    is_heads: bool
    sharing: int = 0


def prune_structures(graph: MaseGraph, config: PruneWeight, args: PruneArgs) -> dict[str, Any]:
    """Remove the least important channels or heads; return parameter counts and widths."""
    layers = chosen_layers(graph, config.target_modules, "prune.weight.target_modules")
    inputs = bind_inputs(graph, args.dummy_in, "prune")
    by_query = config.granularity == QUERY
    coupling = couple(graph, inputs, find_rule, by_query=by_query)
    families = _chosen_families(coupling, set(layers), config)
    scorer = _scorer(graph, coupling, families, config, args)
    before = sum(p.numel() for p in graph.model.parameters())
    choices: list[HeadChoice] = []
    if by_query:
        decisions = choose_query_heads(coupling, [f.groups for f in families], scorer, config.share)
        choices = [choice for choice, _ in decisions]
        dropped = np.concatenate([groups for _, groups in decisions])
    else:
        dropped = _choose(families, group_scores(coupling, scorer), config)
    _remove(graph, Removal(coupling, dropped, choices), inputs)
    return {
        "parameters_before": before,
        "parameters": sum(p.numel() for p in graph.model.parameters()),
        "removed": [_record(family, dropped) for family in families],
    }


def _record(family: ChannelFamily, dropped: Labels) -> dict[str, Any]:
    removed = int(np.isin(family.groups, dropped).sum())
    kind = "query heads" if family.sharing else "heads" if family.is_heads else "channels"
    count, each = len(family.groups), family.sharing or 1
    sizes = {"before": each * count, "after": each * (count - removed)}
    return {"layers": list(family.producers), "kind": kind, **sizes}


def find_families(coupling: Coupling) -> list[ChannelFamily]:
    """Return the removable groups, by the layers that make them."""
    roots = coupling.labels.roots()
    makers: dict[int, dict[str, None]] = {}
    for path, labels, _ in coupling.producers:
        for group in np.unique(roots[labels]).tolist():
            makers.setdefault(group, {})[path] = None
    makers.pop(FROZEN, None)
    together: dict[tuple[str, ...], list[int]] = {}
    for group, paths in makers.items():
        together.setdefault(tuple(paths), []).append(group)
    heads = {int(roots[label]) for labels in coupling.heads for label in labels.tolist()}
    repeats = {int(roots[label]) for labels in coupling.repeats for label in labels.tolist()}
    sharing = {
        group: len(np.unique(labels[roots[labels] == group]))
        for labels in coupling.heads
        for group in repeats.intersection(roots[labels].tolist())
    }
    return [
        ChannelFamily(paths, np.array(groups), groups[0] in heads, sharing.get(groups[0], 0))
        for paths, groups in together.items()
    ]


def _chosen_families(
    coupling: Coupling, paths: set[str], config: PruneWeight
) -> list[ChannelFamily]:
    is_query = config.granularity == QUERY
    families = [
        family
        for family in find_families(coupling)
        if family.is_heads == (config.granularity != "channel") and (family.sharing or not is_query)
    ]
    chosen = [f for f in families if paths.intersection(f.producers) and len(f.groups) > 1]
    if not chosen:
        able = ", ".join(p for f in families for p in f.producers) or "none"
        raise PassError(
            f"prune: no {config.granularity} of the chosen layers can be removed. Layers with "
            f"removable {config.granularity}s: {able}.{SHARED_HINT if is_query else ''}"
        )
    return chosen


def _scorer(
    graph: MaseGraph,
    coupling: Coupling,
    families: list[ChannelFamily],
    config: PruneWeight,
    args: PruneArgs,
) -> Scorer:
    method = config.method
    if not METHODS[method].needs_inputs:
        gradients = gradient_scores(graph, args, method)
        return lambda path, w: score(w, method, path, seed=args.seed, gradients=gradients)
    for path in (path for family in families for path in family.producers):
        check_layer(graph.model.get_submodule(path), path, method)
    paths = dict.fromkeys(path for path, _, _ in coupling.producers)
    modules = {path: graph.model.get_submodule(path) for path in paths}
    layers = {path: m for path, m in modules.items() if isinstance(m, MULTIPLYING)}
    squares = dict(summed_inputs(graph, layers, calibration_data(args, method)))

    def by_inputs(path: str, weight: nn.Parameter) -> Tensor | None:
        if path not in squares:
            return None
        return score(weight, method, path, seed=0, norms=input_norms(layers[path], squares[path]))

    return by_inputs


def group_scores(coupling: Coupling, scorer: Scorer) -> dict[int, float]:
    """Return the mean score of the weights in each group, over the layers that make or read it."""
    roots = coupling.labels.roots()
    total, count = np.zeros(len(roots)), np.zeros(len(roots))
    weights = {id(w): (path, w) for path, _, w in coupling.producers}
    for path, weight in weights.values():
        scores = scorer(path, weight)
        if scores is None:
            continue
        for dim, labels in enumerate(coupling.tensors[id(weight)][1].dims):
            others = [i for i in range(scores.dim()) if i != dim]
            sums = scores.sum(others).double().cpu().numpy()
            np.add.at(total, roots[labels], sums)
            np.add.at(count, roots[labels], weight.numel() / len(labels))
    return {i: total[i] / count[i] for i in np.flatnonzero(count).tolist()}


def _choose(families: list[ChannelFamily], scores: dict[int, float], config: PruneWeight) -> Labels:
    """Return the groups to remove; at least one of each family stays."""
    ranked = [np.array([scores[g] for g in f.groups.tolist()]) for f in families]
    if config.scope == "global":
        ranked = [s / max(abs(s).mean(), 1e-30) for s in ranked]  # families differ in scale
        keep = keep_largest(torch.tensor(np.concatenate(ranked)), config.share).numpy()
        keeps = np.split(keep, np.cumsum([len(s) for s in ranked])[:-1])
    else:
        keeps = [keep_largest(torch.tensor(s), config.share).numpy() for s in ranked]
    for keep, values in zip(keeps, ranked, strict=True):
        keep[values.argmax()] = True
    return np.concatenate([f.groups[~keep] for f, keep in zip(families, keeps, strict=True)])


# -- changing the graph ----------------------------------------------------------------------


class Removal:
    """Groups of labels to remove, and the query heads that `choices` select among them."""

    def __init__(self, coupling: Coupling, dropped: Labels, choices: Sequence[HeadChoice]) -> None:
        self.coupling, self.choices = coupling, choices
        self.roots = coupling.labels.roots()
        self.gone = np.isin(self.roots, dropped)

    def remaining(self, labels: Labels) -> int:
        """Return the number of indices of a dimension that stay."""
        return int((~self.gone[labels]).sum())

    def touches(self, axes: ChannelAxes) -> bool:
        """Return True if any index of a tensor is removed."""
        return any(self.gone[labels].any() for labels in axes.dims)

    def keep(self, labels: Labels) -> Mask:
        """Return the mask of the indices of a tensor's dimension that stay."""
        mask: Mask = ~self.gone[labels]
        for choice in self.choices:
            choice.apply(self.roots[labels], mask)
        return mask


def _remove(graph: MaseGraph, removal: Removal, inputs: Any) -> None:
    """Remove groups from the graph; if a shape does not fit, undo all changes and raise."""
    undo: list[Callable[[], None]] = []
    try:
        _shrink_modules(graph, removal, undo)
        for node, rewrite in removal.coupling.rewrites:
            undo.append(_restorer(node))
            rewrite(node, removal.remaining)
        graph.recompile()
        _check_shapes(graph, removal.coupling, removal.remaining, inputs)
    except Exception:
        for step in reversed(undo):
            step()
        graph.recompile()
        raise


def _restorer(node: fx.Node) -> Callable[[], None]:
    op, target, args, kwargs = node.op, node.target, node.args, node.kwargs

    def restore() -> None:
        node.op, node.target, node.args, node.kwargs = op, target, args, kwargs

    return restore


def _shrink_modules(graph: MaseGraph, removal: Removal, undo: list[Callable[[], None]]) -> None:
    """Replace the modules that own a shrunk tensor by smaller ones."""
    coupling, remaining = removal.coupling, removal.remaining
    new = {
        key: _shrunk(tensor, [removal.keep(labels) for labels in axes.dims])
        for key, (tensor, axes) in coupling.tensors.items()
        if removal.touches(axes)
    }
    smaller: dict[int, nn.Module] = {}
    for path, module in list(graph.model.named_modules(remove_duplicate=False)):
        tensors = (*module._parameters.values(), *module._buffers.values())
        if not any(id(tensor) in new for tensor in tensors):
            continue
        if id(module) not in smaller:
            smaller[id(module)] = copied = _copied(module, undo)
            for table in (copied._parameters, copied._buffers):
                table.update({n: new[id(t)] for n, t in table.items() if id(t) in new})  # type: ignore[misc]
            for owner, name, size in coupling.sizes:
                if owner is module:
                    setattr(copied, name, size(remaining))
        if smaller[id(module)] is not module:
            undo.append(lambda path=path, module=module: set_module(graph, path, module))  # type: ignore[misc]
            set_module(graph, path, smaller[id(module)])


def _copied(module: nn.Module, undo: list[Callable[[], None]]) -> nn.Module:
    """Copy a layer; a container belongs to the graph and is changed in place."""
    if type(module) is not nn.Module and not isinstance(module, fx.GraphModule):
        return reclassed(module, type(module))
    tables = dict(module._parameters), dict(module._buffers)

    def restore() -> None:
        module._parameters.update(tables[0])
        module._buffers.update(tables[1])

    undo.append(restore)
    return module


def _shrunk(tensor: Tensor, keeps: Sequence[np.ndarray[Any, Any]]) -> Tensor:
    data = tensor.detach()
    for dim, keep in enumerate(keeps):
        if not keep.all():
            index = torch.from_numpy(np.flatnonzero(keep)).to(data.device)
            data = data.index_select(dim, index)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(data, requires_grad=tensor.requires_grad)
    return data


def _check_shapes(
    graph: MaseGraph, coupling: Coupling, remaining: Callable[[Labels], int], inputs: Any
) -> None:
    """Raise if the graph does not run, or a result has another shape than its labels."""
    try:
        shapes = result_shapes(graph, inputs)
    except PassError as error:
        raise PassError(f"prune: {MISFIT}: {error} {REMEDY}") from error
    for node, value in coupling.values.items():
        expected = [tuple(remaining(dim) for dim in axes.dims) for axes in axes_in(value)]
        actual = [axes.shape for axes in axes_in(shapes[node])]
        if expected != actual:
            raise PassError(
                f"prune: {MISFIT}: node '{node.name}' gives {actual} instead of {expected}. "
                f"{REMEDY}"
            )


Scorer = Callable[[str, nn.Parameter], Tensor | None]
"""Return the scores of the weight of the layer at a path; None if it has none."""
Mask = NDArray[np.bool_]


class HeadChoice:
    """Mask of the query heads of one block that stay; `groups` are the labels of their places."""

    def __init__(self, groups: Labels) -> None:
        self.groups = groups
        self._total: NDArray[np.float64] = np.zeros(0)
        self._count: NDArray[np.float64] = np.zeros(0)
        self.keep: Mask = np.zeros(0, dtype=bool)

    def heads(self, labels: Labels) -> tuple[Labels, Labels]:
        """Return the indices of a dimension that belong to heads, and the head of each."""
        index = np.flatnonzero(np.isin(labels, self.groups))
        places = labels[index]
        begins = (places[1:] != places[:-1]) | (np.diff(index) > 1)
        return index, np.concatenate([[0], np.cumsum(begins)]) if len(index) else index

    def add(self, scores: Tensor, dim: int, labels: Labels) -> None:
        """Add the scores of a weight along one of its dimensions."""
        index, head = self.heads(labels)
        if not len(index):
            return
        sums = scores.sum([i for i in range(scores.dim()) if i != dim]).double().cpu().numpy()
        if not len(self._total):
            self._total, self._count = np.zeros(head[-1] + 1), np.zeros(head[-1] + 1)
        np.add.at(self._total, head, sums[index])
        np.add.at(self._count, head, scores.numel() / len(labels))

    def choose(self, share: float) -> Labels:
        """Keep the best heads of every group; return the labels of the places that are removed."""
        places = len(self.groups)
        count = min(round(share * places), places - 1)
        means = torch.tensor(self._total / self._count).reshape(-1, places)
        keep = keep_largest_of_rows(means, torch.full((len(means),), count))
        self.keep = keep.flatten().numpy()
        return self.groups[places - count :]

    def apply(self, labels: Labels, keep: Mask) -> None:
        """Write into the mask `keep` of one dimension which of the indices in heads stay."""
        index, head = self.heads(labels)
        keep[index] = self.keep[head]


def choose_query_heads(
    coupling: Coupling, families: Sequence[Labels], scorer: Scorer, share: float
) -> list[tuple[HeadChoice, Labels]]:
    """Return the heads that stay and the labels that are removed, for each family of labels."""
    roots = coupling.labels.roots()
    choices = [HeadChoice(groups) for groups in families]
    for path, weight in {id(w): (path, w) for path, _, w in coupling.producers}.values():
        scores = scorer(path, weight)
        if scores is None:
            continue
        for dim, labels in enumerate(coupling.tensors[id(weight)][1].dims):
            for choice in choices:
                choice.add(scores, dim, roots[labels])
    return [(choice, choice.choose(share)) for choice in choices]
