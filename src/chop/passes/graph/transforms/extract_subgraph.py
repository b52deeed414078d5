"""Extract the part of a graph between chosen nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, fx

from chop.errors import ConfigError, PassError
from chop.ir.graph import MaseGraph
from chop.ir.guards import guards_of, replace_guards
from chop.ir.meta import MaseMetadata
from chop.ir.outputs import OutputTemplate
from chop.passes.base import PassResult, graph_pass
from chop.passes.rewrite.annotate import ensure_meta, refresh
from chop.passes.rewrite.propagate import propagate
from chop.passes.rewrite.surgery import drop_unused_modules
from chop.registry import suggest


@dataclass(frozen=True)
class ExtractSubgraphArgs:
    """Settings of `extract_subgraph_transform_pass`.

    `outputs`: nodes whose results the part returns. `inputs`: nodes whose results it receives;
    without any, the part starts at the inputs of the graph.
    """

    outputs: list[str]
    inputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.outputs:
            raise ConfigError("outputs is empty; name at least one node.")


@graph_pass("extract_subgraph_transform_pass", ExtractSubgraphArgs, rewrites=True, preserves=False)
def extract_subgraph_transform_pass(graph: MaseGraph, args: ExtractSubgraphArgs) -> PassResult:
    """Reduce the graph to the nodes that compute `outputs` from `inputs`.

    Each node of `inputs` becomes an input of the same name; unused inputs and modules are removed.
    One output is returned directly, several as a tuple. `info["inputs"]` lists the inputs of the
    part. Work on a deep copy to keep the whole graph.
    """
    outputs = [_find(graph, name, "outputs") for name in args.outputs]
    inputs = [_find(graph, name, "inputs") for name in args.inputs]
    shapes = _shapes(graph, inputs)
    first = next(iter(graph.fx_graph.nodes))
    cuts = {node: _cut(node, first) for node in inputs if node.op != "placeholder"}
    ends = tuple(cuts.get(node, node) for node in outputs)
    output = next(node for node in graph.fx_graph.nodes if node.op == "output")
    output.args = (ends[0] if len(ends) == 1 else ends,)
    hooks = graph.model._forward_hooks
    for key in [k for k, hook in hooks.items() if isinstance(hook, OutputTemplate)]:
        del hooks[key]  # it describes the whole model's output
    _erase_others(graph, ends)
    names = [str(n.target) for n in graph.fx_graph.nodes if n.op == "placeholder"]
    _guard_part(graph, names, shapes)
    examples = graph.dummy_in or {}
    graph.dummy_in = {n: examples[n] for n in names} if set(names) <= set(examples) else None
    refresh(graph)
    return graph, {"inputs": names}


def _shapes(graph: MaseGraph, inputs: list[fx.Node]) -> dict[str, tuple[int, ...]]:
    """Return the shapes, as captured, of results that become inputs."""
    guards = guards_of(graph.model)
    if guards is None or not guards.guards or not graph.dummy_in:
        return {}
    shapes: dict[str, tuple[int, ...]] = {}

    def record(node: fx.Node, result: Any) -> None:
        if node in inputs and isinstance(result, Tensor):
            shapes[node.name] = tuple(result.shape)

    names = [str(n.target) for n in graph.fx_graph.nodes if n.op == "placeholder"]
    propagate(graph, {n: graph.dummy_in[n] for n in names}, record, real=False)
    return shapes


def _guard_part(graph: MaseGraph, names: list[str], shapes: dict[str, tuple[int, ...]]) -> None:
    """Replace guards on removed inputs by pins of the new inputs' sizes."""
    guards = guards_of(graph.model)
    if guards is None:
        return
    part = guards.restricted(names)
    lost = [g for g in guards.guards if g not in part.guards]
    if lost:
        part = part.pinning({name: s for name, s in shapes.items() if name in names}, lost[0])
    replace_guards(graph.model, part)


def _find(graph: MaseGraph, name: str, where: str) -> fx.Node:
    by_name: dict[str, fx.Node] = {n.name: n for n in graph.fx_graph.nodes if n.op != "output"}
    if name not in by_name:
        raise PassError(f"extract_subgraph.{where}: no node '{name}'. {suggest(name, by_name)}")
    return by_name[name]


def _cut(node: fx.Node, first: fx.Node) -> fx.Node:
    """Insert an input before `first` that replaces the result of `node`."""
    with node.graph.inserting_before(first):
        new = node.graph.placeholder(node.name)
    if isinstance(node.meta.get("mase"), MaseMetadata):
        common = ensure_meta(new).common
        results = node.meta["mase"].common.results or {}
        common.results = {name: replace(value) for name, value in results.items()}
        common.args = {}
    node.replace_all_uses_with(new)
    return new


def _erase_others(graph: MaseGraph, ends: tuple[fx.Node, ...]) -> None:
    needed = set(ends)
    targets = []
    for node in reversed(list(graph.fx_graph.nodes)):
        if node in needed:
            needed.update(node.all_input_nodes)
        elif node.op != "output":
            graph.fx_graph.erase_node(node)
            targets += [str(node.target)] if node.op == "call_module" else []
    drop_unused_modules(graph, targets)
