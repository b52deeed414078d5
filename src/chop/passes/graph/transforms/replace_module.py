"""Put other modules in the place of chosen ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import fx, nn

from chop.errors import ConfigError, PassError
from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op, node_module
from chop.passes.base import PassResult, graph_pass
from chop.passes.graph.annotate import refresh
from chop.passes.graph.transforms.surgery import set_module
from chop.patterns import check_pattern, fullmatch

Matches = Callable[[MaseGraph, fx.Node, Any], bool]


def _by_name(graph: MaseGraph, node: fx.Node, target: Any) -> bool:
    return target in (str(node.target), node.name)


def _by_type(graph: MaseGraph, node: fx.Node, target: Any) -> bool:
    if isinstance(target, type):
        return isinstance(node_module(node), target)
    op = find_op(node, graph.custom_ops)
    return target in (op.name if op else None, type(node_module(node)).__name__)


def _by_pattern(graph: MaseGraph, node: fx.Node, target: Any) -> bool:
    check_pattern(target, "replace_module_transform_pass: target", ConfigError)
    return fullmatch(target, str(node.target))


MATCHERS: dict[str, Matches] = {"name": _by_name, "type": _by_type, "pattern": _by_pattern}


@dataclass(frozen=True)
class ReplaceModuleArgs:
    """`by` and `target` say which: a path or node name ("name"), a class, its name or a MASE op
    ("type"), or a regular expression over whole paths ("pattern"). `factory` takes the module
    there and gives the one to put in its place.
    """

    target: Any
    factory: Any
    by: Literal["name", "type", "pattern"] = "name"

    def __post_init__(self) -> None:
        if not callable(self.factory):
            kind = type(self.factory).__name__
            raise ConfigError(f"factory must be a function from module to module, got {kind}.")


@graph_pass("replace_module_transform_pass", ReplaceModuleArgs, rewrites=True, preserves=False)
def replace_module_transform_pass(graph: MaseGraph, args: ReplaceModuleArgs) -> PassResult:
    """Replace the chosen modules by what `factory` makes of each; `info["replaced"]` names them.

    A module called in several places is replaced by one new module in all of them. Metadata
    follows the new modules. An error where nothing matches.
    """
    made: dict[int, nn.Module] = {}
    replaced: list[str] = []
    calls = [n for n in graph.fx_graph.nodes if n.op == "call_module"]
    chosen = [n for n in calls if MATCHERS[args.by](graph, n, args.target)]
    if not chosen:
        raise PassError(f"replace_module: no module matches {args.by} {args.target!r}.")
    for target in dict.fromkeys(str(node.target) for node in chosen):
        old = graph.model.get_submodule(target)
        if id(old) not in made:
            made[id(old)] = _make(args.factory, old, target)
        set_module(graph, target, made[id(old)])
        replaced.append(target)
    refresh(graph)
    return graph, {"replaced": replaced}


def _make(factory: Callable[[nn.Module], Any], old: nn.Module, target: str) -> nn.Module:
    new = factory(old)
    if not isinstance(new, nn.Module):
        raise PassError(f"replace_module: factory gave {type(new).__name__} for '{target}'.")
    return new
