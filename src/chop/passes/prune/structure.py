"""Remove channels and heads: rows and columns of every weight that shares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from chop.errors import PassError
from chop.ir.graph import MaseGraph
from chop.ir.reclass import reclassed
from chop.passes.prune.calibrated import given_batches, summed_inputs
from chop.passes.prune.channel_labels import FROZEN, Axes, Labels, axes_in
from chop.passes.prune.channel_rules import find_rule
from chop.passes.prune.coupling import Coupling, couple, result_shapes
from chop.passes.prune.granularity import keep_largest
from chop.passes.prune.importance import METHODS, score
from chop.passes.prune.pruning_config import QUERY, PruneArgs, PruneWeight
from chop.passes.prune.pruning_inputs import MULTIPLYING, check_layer, input_norms
from chop.passes.prune.query_heads import (
    HeadChoice,
    Mask,
    Scorer,
    choose_query_heads,
)
from chop.passes.prune.weight_masks import chosen_layers, gradient_scores
from chop.passes.rewrite.propagate import bind_inputs
from chop.passes.rewrite.surgery import set_module


@dataclass(frozen=True)
class Family:
    """Groups that the same layers make: the channels of one width, or the heads of one block.

    `sharing`: where a group has one query head of each that share keys and values, how many share.
    """

    producers: tuple[str, ...]
    groups: Labels
    is_heads: bool
    sharing: int = 0


def prune_structures(graph: MaseGraph, config: PruneWeight, args: PruneArgs) -> dict[str, Any]:
    """Remove the least important channels or heads; parameters before and after, and widths."""
    layers = chosen_layers(graph, config.target_modules, "prune.weight.target_modules")
    inputs = bind_inputs(graph, args.dummy_in, "prune")
    by_query = config.granularity == QUERY
    coupling = couple(graph, inputs, find_rule, by_query=by_query)
    families = _chosen_families(coupling, set(layers), config)
    scorer = _scorer(graph, coupling, families, config, args)
    before = sum(p.numel() for p in graph.model.parameters())
    choices: list[HeadChoice] = []
    if by_query:
        made = choose_query_heads(coupling, [f.groups for f in families], scorer, config.share)
        choices = [choice for choice, _ in made]
        dropped = np.concatenate([gone for _, gone in made])
    else:
        dropped = _choose(families, group_scores(coupling, scorer), config)
    _remove(graph, Removal(coupling, dropped, choices), inputs)
    return {
        "parameters_before": before,
        "parameters": sum(p.numel() for p in graph.model.parameters()),
        "removed": [_record(family, dropped) for family in families],
    }


def _record(family: Family, dropped: Labels) -> dict[str, Any]:
    gone = int(np.isin(family.groups, dropped).sum())
    kind = "query heads" if family.sharing else "heads" if family.is_heads else "channels"
    count, each = len(family.groups), family.sharing or 1
    sizes = {"before": each * count, "after": each * (count - gone)}
    return {"layers": list(family.producers), "kind": kind, **sizes}


def find_families(coupling: Coupling) -> list[Family]:
    """The removable groups, by the layers that make them."""
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
    sharing = _sharing(coupling, roots)
    return [
        Family(paths, np.array(groups), groups[0] in heads, sharing.get(groups[0], 0))
        for paths, groups in together.items()
    ]


def _sharing(coupling: Coupling, roots: Labels) -> dict[int, int]:
    """For labels of query heads that share, how many heads of keys and values there are."""
    places = {int(roots[label]) for labels in coupling.repeats for label in labels.tolist()}
    return {
        place: len(np.unique(labels[roots[labels] == place]))
        for labels in coupling.heads
        for place in places.intersection(roots[labels].tolist())
    }


def _chosen_families(coupling: Coupling, paths: set[str], config: PruneWeight) -> list[Family]:
    wants_heads = config.granularity != "channel"
    found = [f for f in find_families(coupling) if f.is_heads == wants_heads]
    if config.granularity == QUERY:
        found = [f for f in found if f.sharing]
    chosen = [f for f in found if paths.intersection(f.producers) and len(f.groups) > 1]
    if not chosen:
        can = ", ".join(p for f in found for p in f.producers) or "none"
        raise PassError(
            f"prune: no {config.granularity} of the chosen layers can be removed. "
            f"Layers with removable {config.granularity}s: {can}.{_hint(config)}"
        )
    return chosen


def _scorer(
    graph: MaseGraph,
    coupling: Coupling,
    families: list[Family],
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
    found = {path: graph.model.get_submodule(path) for path in paths}
    layers = {path: m for path, m in found.items() if isinstance(m, MULTIPLYING)}
    squares = dict(summed_inputs(graph, layers, given_batches(args, method)))

    def by_inputs(path: str, weight: nn.Parameter) -> Tensor | None:
        if path not in squares:
            return None
        return score(weight, method, path, seed=0, norms=input_norms(layers[path], squares[path]))

    return by_inputs


def _hint(config: PruneWeight) -> str:
    shares = " Of query heads that share no keys and values remove a 'head'."
    return shares if config.granularity == QUERY else ""


def group_scores(coupling: Coupling, scorer: Scorer) -> dict[int, float]:
    """The mean score of the weights in each group, over the layers that make or take it."""
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


def _choose(families: list[Family], scores: dict[int, float], config: PruneWeight) -> Labels:
    """The groups to remove; of each family at least one stays."""
    ranked = [np.array([scores[g] for g in f.groups.tolist()]) for f in families]
    if config.scope == "global":
        ranked = [s / max(abs(s).mean(), 1e-30) for s in ranked]  # families differ in scale
        keep = keep_largest(torch.tensor(np.concatenate(ranked)), config.share).numpy()
        kept = np.split(keep, np.cumsum([len(s) for s in ranked])[:-1])
    else:
        kept = [keep_largest(torch.tensor(s), config.share).numpy() for s in ranked]
    for keep, values in zip(kept, ranked, strict=True):
        keep[values.argmax()] = True
    return np.concatenate([f.groups[~keep] for f, keep in zip(families, kept, strict=True)])


# -- changing the graph ----------------------------------------------------------------------


class Removal:
    """What goes: groups of labels, and of query heads that share those that `choices` say."""

    def __init__(self, coupling: Coupling, dropped: Labels, choices: Sequence[HeadChoice]) -> None:
        self.coupling, self.choices = coupling, choices
        self.roots = coupling.labels.roots()
        self.gone = np.isin(self.roots, dropped)

    def kept(self, labels: Labels) -> int:
        """How many indices of a dimension stay."""
        return int((~self.gone[labels]).sum())

    def touches(self, axes: Axes) -> bool:
        """Whether anything of a tensor goes."""
        return any(self.gone[labels].any() for labels in axes.dims)

    def keep(self, labels: Labels) -> Mask:
        """Which indices of a dimension of a tensor stay."""
        found: Mask = ~self.gone[labels]
        for choice in self.choices:
            choice.apply(self.roots[labels], found)
        return found


def _remove(graph: MaseGraph, removal: Removal, inputs: Any) -> None:
    """Remove groups from the graph; where a shape would not fit, undo all and raise."""
    undo: list[Callable[[], None]] = []
    try:
        _shrink_modules(graph, removal, undo)
        for node, rewrite in removal.coupling.rewrites:
            undo.append(_restorer(node))
            rewrite(node, removal.kept)
        graph.recompile()
        _check_shapes(graph, removal.coupling, removal.kept, inputs)
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
    """Put smaller modules in the place of those that own a shrunk tensor."""
    coupling, kept = removal.coupling, removal.kept
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
            _replace_tensors(copied, new)
            for owner, name, size in coupling.sizes:
                if owner is module:
                    setattr(copied, name, size(kept))
        if smaller[id(module)] is not module:
            undo.append(lambda path=path, module=module: set_module(graph, path, module))  # type: ignore[misc]
            set_module(graph, path, smaller[id(module)])


def _copied(module: nn.Module, undo: list[Callable[[], None]]) -> nn.Module:
    """A copy of a layer; a container, which is the graph's own, is changed itself."""
    if type(module) is not nn.Module and not isinstance(module, fx.GraphModule):
        return reclassed(module, type(module))
    tables = dict(module._parameters), dict(module._buffers)

    def restore() -> None:
        module._parameters.update(tables[0])
        module._buffers.update(tables[1])

    undo.append(restore)
    return module


def _replace_tensors(module: nn.Module, new: dict[int, Tensor]) -> None:
    for table in (module._parameters, module._buffers):
        for name, tensor in table.items():
            if id(tensor) in new:
                table[name] = new[id(tensor)]  # type: ignore[assignment]


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
    graph: MaseGraph, coupling: Coupling, kept: Callable[[Labels], int], inputs: Any
) -> None:
    """Raise where the graph does not run; every result has the shape that its labels foretell."""
    try:
        shapes = result_shapes(graph, inputs)
    except PassError as error:
        raise PassError(f"prune: {MISFIT}: {error} {REMEDY}") from error
    for node, value in coupling.values.items():
        wanted = [tuple(kept(dim) for dim in axes.dims) for axes in axes_in(value)]
        found = [axes.shape for axes in axes_in(shapes[node])]
        if wanted != found:
            raise PassError(
                f"prune: {MISFIT}: node '{node.name}' gives {found} instead of {wanted}. {REMEDY}"
            )


MISFIT = "the graph does not fit without the channels chosen"
REMEDY = "Leave the layers before that node out with target_modules."
