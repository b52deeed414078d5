"""Replace chosen modules by other modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import fx, nn

from chop.errors import ConfigError, PassError
from chop.ir.graph import MaseGraph
from chop.ir.ops import find_op, node_module
from chop.passes.base import PassResult, graph_pass
from chop.passes.rewrite.annotate import refresh
from chop.passes.rewrite.surgery import replace_modules
from chop.patterns import check_pattern, fullmatch


@dataclass(frozen=True)
class ReplaceModuleArgs:
    """Settings of `replace_module_transform_pass`.

    `by` and `target`: a path or node name ("name"), a class, its name or a MASE op ("type"), or a
    regular expression over whole paths ("pattern"). `factory`: a function from the old module to
    the new one.
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
    """Replace the chosen modules by those of `factory`; `info["replaced"]` names them.

    A module with several calls is replaced by one new module. Metadata is updated. It is an error
    if nothing matches.
    """
    calls = [n for n in graph.fx_graph.nodes if n.op == "call_module"]
    targets = [str(n.target) for n in calls if _matches(graph, n, args)]
    layers = {target: graph.model.get_submodule(target) for target in targets}
    if not layers:
        raise PassError(f"replace_module: no module matches {args.by} {args.target!r}.")

    def make(target: str, old: nn.Module) -> nn.Module:
        new = args.factory(old)
        if not isinstance(new, nn.Module):
            raise PassError(f"replace_module: factory gave {type(new).__name__} for '{target}'.")
        return new

    replace_modules(graph, layers, make)
    refresh(graph)
    return graph, {"replaced": list(layers)}


def _matches(graph: MaseGraph, node: fx.Node, args: ReplaceModuleArgs) -> bool:
    target, module = args.target, node_module(node)
    if args.by == "name":
        return target in (str(node.target), node.name)
    if args.by == "pattern":
        check_pattern(target, "replace_module_transform_pass: target", ConfigError)
        return fullmatch(target, str(node.target))
    if isinstance(target, type):
        return isinstance(module, target)
    op = find_op(node, graph.custom_ops)
    return target in (op.name if op else None, type(module).__name__)
