"""Parts of a planned graph, one per pipeline stage: which nodes a stage runs, receives and sends.

A stage sends the learnt values that later stages read. Values that depend on the inputs alone, such
as masks and positions, are computed again by every stage that reads them, because every stage has
the inputs of the model. A value that is read two stages later passes through the stage between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from chop.distributed.pipeline import PipelinePlan
from chop.distributed.program import program_of
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.meta import mase_meta


@dataclass(frozen=True)
class GraphPart:
    """Nodes of one stage, by name, in order of execution; the last stage returns the outputs.

    `shapes`: shape and dtype of values of earlier stages of which only these are read.
    """

    nodes: tuple[str, ...]
    receives: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> GraphPart:
        """Return the part of plain data, as `dataclasses.asdict` makes it."""
        shapes = {name: (tuple(shape), dtype) for name, (shape, dtype) in record["shapes"].items()}
        nodes, receives, sends = (tuple(record[n]) for n in ("nodes", "receives", "sends"))
        return cls(nodes, receives, sends, shapes)

    @property
    def is_last(self) -> bool:
        """True if this stage returns the outputs of the model."""
        return not self.sends


def whole_graph(graph: MaseGraph) -> GraphPart:
    """Return all nodes as one part."""
    return GraphPart(tuple(node.name for node in graph.fx_graph.nodes))


def graph_parts(graph: MaseGraph, pipeline: PipelinePlan) -> list[GraphPart]:
    """Return the part of each stage of a planned pipeline."""
    stages = _stages(graph, [stage.first for stage in pipeline.stages[1:]])
    values = {value.name for value in program_of(graph).values}
    nodes = list(graph.fx_graph.nodes)
    output = nodes[-1]
    needed: tuple[str, ...] = ()
    parts: list[GraphPart] = []
    for stage in reversed(range(len(pipeline.stages))):
        targets = [output] if not parts else [n for n in nodes if n.name in needed]
        run, earlier = _reached(targets, stages, stage)
        order = tuple(n.name for n in nodes if n in run)
        receives = tuple(n.name for n in nodes if n in earlier and n in _read(run, values, targets))
        shapes = {n.name: _facts(n) for n in earlier if n.name not in receives}
        parts.insert(0, GraphPart(order, receives, needed, shapes))
        needed = receives
    _check(parts)
    return parts


def _stages(graph: MaseGraph, firsts: Sequence[str]) -> dict[str, int]:
    """Return the stage of each node whose value depends on a parameter."""
    stage, stages = 0, {}
    for value in program_of(graph).values:
        if stage < len(firsts) and value.name == firsts[stage]:
            stage += 1
        if value.is_learnt and not value.is_parameter:
            stages[value.name] = stage
    return stages


def _reached(
    targets: Sequence[fx.Node], stages: dict[str, int], stage: int
) -> tuple[set[fx.Node], set[fx.Node]]:
    """Return the nodes that `stage` runs for `targets`, and those whose values it receives."""
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
    return run, received


def _read(run: set[fx.Node], values: set[str], targets: Sequence[fx.Node]) -> set[fx.Node]:
    """Return the nodes whose elements are read, not only their shape, and those to pass on."""
    readers = [node for node in run if node.name in values]
    return {source for node in readers for source in node.all_input_nodes} | set(targets)


def _facts(node: fx.Node) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype of the result of a node."""
    result = next(iter((mase_meta(node).common.results or {}).values()))
    return tuple(result.shape or ()), str(result.torch_dtype).removeprefix("torch.")


def _check(parts: Sequence[GraphPart]) -> None:
    for number, part in enumerate(parts[1:], 1):
        if not part.receives:
            raise ConfigError(
                f"pipeline: stage {number} reads nothing of the stages before it. Give fewer "
                "stages."
            )


def untied(model: nn.Module) -> dict[str, str]:
    """Give each name of a shared parameter a parameter of its own; return name -> first name.

    So a pipeline can be cut between the layers that share it. Their gradients must be added.
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
    return copies
