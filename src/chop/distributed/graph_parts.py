"""Parts of a planned graph, one per pipeline stage: which nodes a stage runs, receives and sends.

A stage sends the learnt values that later stages read. Values that depend on the inputs alone, such
as masks and positions, are computed again by every stage that reads them, because every stage has
the inputs of the model. A value that is read two stages later passes through the stage between.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from chop.distributed.program import layer_tensors, parameter_value, program_of
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta
from chop.ir.ops import UNKNOWN, find_op
from chop.ir.trace.effects import is_mutating


class ValueFacts(NamedTuple):
    """Whole shape and dtype of a value for one micro-batch, and whether it has a gradient."""

    shape: tuple[int, ...]
    dtype: str
    has_gradient: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        """Type of the elements."""
        kind: torch.dtype = getattr(torch, self.dtype)
        return kind


@dataclass(frozen=True)
class GraphPart:
    """Nodes of one stage, by name, in order of execution; the last stage returns the outputs.

    `facts`: values that are received or sent. `shapes`: values of earlier stages of which only
    shape and dtype are read. `outputs`: the float tensors that the last stage returns.
    """

    nodes: tuple[str, ...]
    receives: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    facts: Mapping[str, ValueFacts] = field(default_factory=dict)
    shapes: Mapping[str, ValueFacts] = field(default_factory=dict)
    outputs: tuple[ValueFacts, ...] = ()

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> GraphPart:
        """Return the part of plain data, as `dataclasses.asdict` makes it."""
        nodes, receives, sends = (tuple(record[n]) for n in ("nodes", "receives", "sends"))
        facts, shapes = (
            {name: _facts_of(each) for name, each in record[key].items()}
            for key in ("facts", "shapes")
        )
        outputs = tuple(map(_facts_of, record["outputs"]))
        return cls(nodes, receives, sends, facts, shapes, outputs)

    @property
    def is_last(self) -> bool:
        """True if this stage returns the outputs of the model."""
        return not self.sends


def _facts_of(record: Sequence[Any]) -> ValueFacts:
    shape, dtype, has_gradient = record
    return ValueFacts(tuple(shape), dtype, has_gradient)


def whole_graph(graph: MaseGraph) -> GraphPart:
    """Return all nodes as one part."""
    return GraphPart(tuple(node.name for node in graph.fx_graph.nodes))


def graph_parts(graph: MaseGraph, firsts: Sequence[str]) -> list[GraphPart]:
    """Return the part of each stage; `firsts`: first value of each stage behind the first."""
    stages = _stages(graph, firsts)
    values = {value.name: value.has_gradient for value in program_of(graph).values}
    nodes = list(graph.fx_graph.nodes)
    writers = {n for n in nodes if is_mutating(n, find_op(n, graph.custom_ops) or UNKNOWN)}
    output = nodes[-1]
    needed: tuple[str, ...] = ()
    parts: list[GraphPart] = []
    for stage in reversed(range(len(firsts) + 1)):
        targets = [output] if not parts else [n for n in nodes if n.name in needed]
        run, earlier = _reached(targets, stages, stage, writers)
        order = tuple(n.name for n in nodes if n in run)
        receives = tuple(n.name for n in nodes if n in earlier and n in _read(run, values, targets))
        shapes = {n.name: _facts(n) for n in earlier if n.name not in receives}
        passed = [n for n in nodes if n.name in {*receives, *needed}]
        facts = {n.name: _facts(n, values[n.name]) for n in passed}
        outputs = () if parts else _outputs(output)
        parts.insert(0, GraphPart(order, receives, needed, facts, shapes, outputs))
        needed = receives
    _check(graph, parts)
    return parts


def _stages(graph: MaseGraph, firsts: Sequence[str]) -> dict[str, int]:
    """Return the stage of each node whose value depends on a parameter.

    A node that only fetches a parameter runs in the stage that reads it.
    """
    fetched = {n.name for n in graph.fx_graph.find_nodes(op="get_attr")}
    stage, stages = 0, {}
    for value in program_of(graph).values:
        if stage < len(firsts) and value.name == firsts[stage]:
            stage += 1
        if value.is_learnt and not value.is_parameter and value.name not in fetched:
            stages[value.name] = stage
    return stages


def _reached(
    targets: Sequence[fx.Node],
    stages: Mapping[str, int],
    stage: int,
    writers: Container[fx.Node],
) -> tuple[set[fx.Node], set[fx.Node]]:
    """Return the nodes that `stage` runs for `targets`, and those whose values it receives.

    `writers`: nodes that write into a value that they read, which nothing else may read.
    """
    run: set[fx.Node] = set()
    received: set[fx.Node] = set()
    waiting = list(targets)
    while waiting:
        node = waiting.pop()
        if node in run or node in received:
            continue
        if stages.get(node.name, stage) < stage:
            received.add(node)
        else:
            run.add(node)
            waiting += node.all_input_nodes
            users = [user for user in node.users if user in writers]
            waiting += [user for user in users if stages.get(user.name, stage) == stage]
    return run, received


def _outputs(output: fx.Node) -> tuple[ValueFacts, ...]:
    """Return the float tensors of the outputs of the graph, in order."""
    nodes: list[fx.Node] = []
    fx.node.map_arg(output.args[0], nodes.append)
    facts = [_facts(node) for node in nodes]
    return tuple(each for each in facts if each.torch_dtype.is_floating_point)


def _read(run: set[fx.Node], values: Container[str], targets: Sequence[fx.Node]) -> set[fx.Node]:
    """Return the nodes whose elements are read, not only their shape, and those to pass on."""
    readers = [node for node in run if node.name in values]
    return {source for node in readers for source in node.all_input_nodes} | set(targets)


def _facts(node: fx.Node, has_gradient: bool = False) -> ValueFacts:
    """Return the facts of the result of a node."""
    result = next(iter((mase_meta(node).common.results or {}).values()))
    dtype = str(result.torch_dtype).removeprefix("torch.")
    return ValueFacts(tuple(result.shape or ()), dtype, has_gradient)


def _check(graph: MaseGraph, parts: Sequence[GraphPart]) -> None:
    """Raise for a stage without input, and for a parameter that two stages read."""
    readers: dict[str, int] = {}
    for value in program_of(graph).values:
        for number, part in enumerate(parts):
            for reference in value.references if value.name in part.nodes else ():
                is_parameter = reference.value.startswith(parameter_value(""))
                if is_parameter and readers.setdefault(reference.value, number) != number:
                    raise ConfigError(
                        f"pipeline: {reference.value} is read by stages "
                        f"{readers[reference.value]} and {number}. Give fewer stages, or make "
                        "it two parameters."
                    )
    for number, part in enumerate(parts[1:], 1):
        if not part.receives:
            raise ConfigError(
                f"pipeline: stage {number} reads nothing of the stages before it. Give fewer "
                "stages."
            )


def untied(model: nn.Module) -> dict[str, str]:
    """Give each name of a shared parameter a parameter of its own; return name -> first name.

    So a pipeline can be cut between the layers that share it. Their gradients must be added. Packed
    weights that layers share become one for each, too; they have no gradients.
    """
    first: dict[int, str] = {}
    places: set[tuple[int, str]] = set()  # a shared layer keeps one parameter
    copies: dict[str, str] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        owner, _, leaf = name.rpartition(".")
        layer = model.get_submodule(owner)
        if (id(layer), leaf) in places:
            continue
        places.add((id(layer), leaf))
        if id(parameter) in first:
            setattr(layer, leaf, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
            copies[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
    _untie_buffers(model)
    return copies


def _untie_buffers(model: nn.Module) -> None:
    """Give each layer packed weights of its own."""
    owned: set[int] = set()
    for layer in model.modules():
        own = layer_tensors(layer)
        for leaf, buffer in layer._buffers.items():
            if buffer is not None and leaf in own and id(buffer) in owned:
                layer._buffers[leaf] = buffer.clone()
            elif buffer is not None:
                owned.add(id(buffer))
