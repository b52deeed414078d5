"""Merging of the graphs traced in evaluation mode and in training mode.

They differ in a `training` flag, a dropout rate, or a dropout that runs only in training. Each
becomes a module of the graph, so that `train()` and `eval()` affect graph and model equally.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from chop.ir.modes import ModeConstant, RandomDraw

DROPOUT_MODULES: dict[Callable[..., Any], type[nn.Module]] = {
    F.dropout: nn.Dropout,
    torch.dropout: nn.Dropout,
    F.dropout1d: nn.Dropout1d,
    F.dropout2d: nn.Dropout2d,
    F.dropout3d: nn.Dropout3d,
    F.alpha_dropout: nn.AlphaDropout,
    F.feature_alpha_dropout: nn.FeatureAlphaDropout,
}
_TORCH_DROPOUT = ("input", "p", "train")


@dataclass
class ModeTrace:
    """Graph with the modules, parameters and constants that its targets name."""

    graph: fx.Graph
    attributes: dict[str, Any]
    names: set[str] = field(default_factory=set)

    def add_module(self, owner: str, kind: str, module: nn.Module) -> str:
        """Register a new module under `owner` and return its name."""
        prefix = f"{owner}." if owner else ""
        number = 0
        while f"{prefix}{kind}_{number}" in self.attributes | dict.fromkeys(self.names):
            number += 1
        self.attributes[f"{prefix}{kind}_{number}"] = module
        return f"{prefix}{kind}_{number}"


class ModesDifferError(Exception):
    """Difference of the two graphs beyond constants and dropouts, inside module `owner`."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


def merge(evaluated: ModeTrace, trained: ModeTrace) -> None:
    """Change `evaluated` in place so that it behaves as both traces, each in its mode."""
    merger = _Merger(evaluated, trained)
    for tag, left, right, following in _aligned(evaluated.graph, trained.graph):
        if tag == "equal":
            merger.match(left[0], right[0])
        else:
            merger.insert(left, right, following)
    merger.adopt_dropouts()
    keep_random_draws(evaluated)


def keep_random_draws(evaluated: ModeTrace) -> None:
    """Keep unused random draws, because they advance the random state in training."""
    for node in list(evaluated.graph.nodes):
        if node.op != "call_function" or node.target is not torch.rand or node.users:
            continue
        size = node.args[0] if node.args else node.kwargs.get("size", ())
        if isinstance(size, tuple | list) and not any(isinstance(s, fx.Node) for s in size):
            _replace(evaluated, node, "randomdraw", RandomDraw(tuple(size)), ())


def follow_training_flag(evaluated: ModeTrace) -> None:
    """Make inactive dropouts follow the mode, if only evaluation could be traced."""
    for node in list(evaluated.graph.nodes):
        arguments = _dropout_arguments(node)
        if arguments is not None and not arguments["training"]:
            _to_module(evaluated, node, arguments["p"])


def _aligned(left: fx.Graph, right: fx.Graph) -> Any:
    """Yield pairs of equal nodes, and differing sequences with the node that follows them."""
    a, b = list(left.nodes), list(right.nodes)
    keys_a, keys_b = ([(n.op, n.target, n.meta.get("owner", "")) for n in each] for each in (a, b))
    if keys_a == keys_b:  # linear, and the usual case
        yield from (("equal", [x], [y], None) for x, y in zip(a, b, strict=True))
        return
    matcher = difflib.SequenceMatcher(None, keys_a, keys_b, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            pairs = zip(a[i1:i2], b[j1:j2], strict=True)
            yield from (("equal", [x], [y], None) for x, y in pairs)
        else:
            yield tag, a[i1:i2], b[j1:j2], a[i2] if i2 < len(a) else None


class _Merger:
    def __init__(self, evaluated: ModeTrace, trained: ModeTrace) -> None:
        self.evaluated = evaluated
        self.trained = trained
        self.evaluated_node: dict[fx.Node, fx.Node] = {}
        self.dropouts: list[tuple[fx.Node, float]] = []

    def match(self, node: fx.Node, trained: fx.Node) -> None:
        """Merge a pair of nodes: constants that differ become mode constants."""
        self.evaluated_node[trained] = node
        off, on = _dropout_arguments(node), _dropout_arguments(trained)
        if off and on and not off["training"] and on["training"]:
            first = self._reconcile(node, node.args[0], trained.args[0])
            node.args = (first, *node.args[1:])
            self.dropouts.append((node, on["p"]))
            return
        node.args = self._reconcile(node, node.args, trained.args)
        node.kwargs = self._reconcile(node, node.kwargs, trained.kwargs)

    def insert(
        self, only_evaluated: list[fx.Node], only_trained: list[fx.Node], following: fx.Node | None
    ) -> None:
        """Insert dropouts that run only in training; raise for other differences."""
        for node in only_trained:
            unused_draw = node.target is torch.rand and not node.users
            arguments = _dropout_arguments(node)
            is_dropout = arguments is not None and node.args[0] in self.evaluated_node
            if only_evaluated or following is None or not (is_dropout or unused_draw):
                raise ModesDifferError(_common_owner([*only_evaluated, *only_trained]))
            args = (self.evaluated_node[node.args[0]],) if is_dropout else node.args  # type: ignore[index]
            with self.evaluated.graph.inserting_before(following):
                copy = self.evaluated.graph.create_node("call_function", node.target, args)
            copy.meta["owner"] = node.meta.get("owner", "")
            self.evaluated_node[node] = copy
            if arguments is not None:
                self.dropouts.append((copy, arguments["p"]))

    def _reconcile(self, user: fx.Node, ours: Any, theirs: Any) -> Any:
        if isinstance(ours, fx.Node) and isinstance(theirs, fx.Node):
            if theirs not in self.evaluated_node:
                raise ModesDifferError(user.meta.get("owner", ""))
            return self.evaluated_node[theirs]
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and list(ours) == list(theirs):
            return {k: self._reconcile(user, ours[k], theirs[k]) for k in ours}
        are_sequences = isinstance(ours, tuple | list) and isinstance(theirs, tuple | list)
        if are_sequences and len(ours) == len(theirs):
            pairs = zip(ours, theirs, strict=True)
            return type(ours)(self._reconcile(user, a, b) for a, b in pairs)
        if isinstance(ours, slice) and isinstance(theirs, slice):
            ends = ((s.start, s.stop, s.step) for s in (ours, theirs))
            return slice(*(self._reconcile(user, a, b) for a, b in zip(*ends, strict=True)))
        if type(ours) is type(theirs) and (ours == theirs or (ours != ours and theirs != theirs)):
            return ours  # nodes were compared above
        return self._mode_constant(user, ours, theirs)

    def _mode_constant(self, user: fx.Node, ours: Any, theirs: Any) -> fx.Node:
        owner = user.meta.get("owner", "")
        if not all(isinstance(v, bool | int | float | str | None) for v in (ours, theirs)):
            raise ModesDifferError(owner)
        module = ModeConstant(train_value=theirs, eval_value=ours)
        name = self.evaluated.add_module(owner, "modeconstant", module)
        with self.evaluated.graph.inserting_before(user):
            node = self.evaluated.graph.create_node("call_module", name)
        node.meta["owner"] = owner
        return node

    def adopt_dropouts(self) -> None:
        """Replace the functional dropouts that follow the mode by modules."""
        for node, rate in self.dropouts:
            _to_module(self.evaluated, node, rate)


def _to_module(trace: ModeTrace, node: fx.Node, rate: float) -> None:
    cls = DROPOUT_MODULES[node.target]  # type: ignore[index]
    _replace(trace, node, cls.__name__.lower(), cls(rate), (node.args[0],))


def _replace(trace: ModeTrace, node: fx.Node, kind: str, module: nn.Module, args: Any) -> None:
    """Replace `node` by a call of a new module."""
    name = trace.add_module(node.meta.get("owner", ""), kind, module)
    with trace.graph.inserting_before(node):
        new = trace.graph.create_node("call_module", name, args)
    new.meta.update(node.meta)
    node.replace_all_uses_with(new)
    trace.graph.erase_node(node)


def _dropout_arguments(node: fx.Node) -> dict[str, Any] | None:
    """Return `p` and `training` of a functional dropout, None for other nodes."""
    if node.op != "call_function" or node.target not in DROPOUT_MODULES:
        return None
    if node.target is torch.dropout:
        named = dict(zip(_TORCH_DROPOUT, node.args, strict=False)) | dict(node.kwargs)
        return {"p": named["p"], "training": named["train"]}
    bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return {"p": bound.arguments["p"], "training": bound.arguments["training"]}


def _common_owner(nodes: list[fx.Node]) -> str:
    """Return the innermost module that contains all these nodes."""
    paths = [n.meta.get("owner", "").split(".") for n in nodes]
    levels = zip(*paths, strict=False)
    shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, levels)
    return ".".join(parts[0] for parts in shared)
