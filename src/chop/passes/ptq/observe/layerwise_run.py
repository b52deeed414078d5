"""Run a graph over many batches a stretch at a time, stopping before chosen nodes.

What a node is given can be looked at, and the node's module changed, before anything behind it
runs. Between two stops only those values are kept that a node further on reads, so the memory does
not grow with the depth of the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import tensors_in
from chop.passes.ptq.observe.calibration_data import running
from chop.passes.rewrite.propagate import bind_inputs, undisturbed


class LayerwiseRun:
    """The values of a graph on a list of batches, up to the node it has come to.

    with LayerwiseRun(graph, batches, "gptq.data") as run:
        for node in layers:
            for x in run.operands(node): ...
    """

    def __init__(self, graph: MaseGraph, batches: Iterable[Any], where: str) -> None:
        self.graph = graph
        self.nodes: list[fx.Node] = list(graph.fx_graph.nodes)
        self._place = {node: i for i, node in enumerate(self.nodes)}
        self._last_use = _last_uses(self.nodes, self._place)
        self._position = 0
        self._where = where
        self._values = [self._start(bind_inputs(graph, b, where)) for b in batches]
        if not self._values:
            raise ConfigError(f"{where}: no batch was given. Give at least one.")
        self._context = contextlib.ExitStack()

    def _start(self, inputs: Mapping[str, Any]) -> dict[fx.Node, Any]:
        takes = (node for node in self.nodes if node.op == "placeholder")
        return {node: own(inputs[str(node.target)]) for node in takes}

    def __enter__(self) -> LayerwiseRun:
        self._context.enter_context(undisturbed(self.graph.model))
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.close()
        self._values = []

    def operands(self, node: fx.Node) -> Iterator[Tensor]:
        """What `node` is given as its first operand, batch by batch; all before it has run."""
        self.advance(node)
        source = node.args[0] if node.args else next(iter(node.kwargs.values()))
        assert isinstance(source, fx.Node), f"{node.name} has no operand"
        for values in self._values:
            yield values[source]

    def arguments(self, node: fx.Node) -> Iterator[tuple[Any, Any]]:
        """What `node` is called with, args and kwargs, batch by batch; all before it has run."""
        self.advance(node)
        for values in self._values:
            yield fx.node.map_arg((node.args, node.kwargs), values.__getitem__)

    def advance(self, to: fx.Node) -> None:
        """Run every batch up to `to`, which is not run."""
        end = self._place[to]
        stretch = self.nodes[self._position : end]
        if stretch:
            for number, values in enumerate(self._values):
                with running(self._where, number):
                    self._run(stretch, values)
            self._position = end

    def replay(self, batch: int, end: fx.Node, results: Sequence[fx.Node]) -> list[Any]:
        """What `results` give on one batch from here up to `end`; the run stays where it is."""
        values = {node: own(value) for node, value in self._values[batch].items()}
        stretch = self.nodes[self._position : self._place[end]]
        self._run(stretch, values, keeps=results)
        return [values[node] for node in results]

    def values(self, batch: int, nodes: Sequence[fx.Node]) -> list[Any]:
        """What nodes gave on one batch, of those that are still to be read."""
        return [self._values[batch][node] for node in nodes]

    def results(self) -> Iterator[Any]:
        """What the model gives, batch by batch; the run ends with it."""
        output = self.nodes[-1]
        self.advance(output)
        for values in self._values:
            yield fx.node.map_arg(output.args[0], values.__getitem__)

    def _run(
        self,
        stretch: Sequence[fx.Node],
        values: dict[fx.Node, Any],
        keeps: Sequence[fx.Node] = (),
    ) -> None:
        interpreter = fx.Interpreter(self.graph.model, garbage_collect_values=False)
        interpreter.extra_traceback = False
        interpreter.env = values
        for node in stretch:
            if node.op != "placeholder":
                values[node] = interpreter.run_node(node)
            for dead in self._last_use.get(node, ()):
                if dead not in keeps:
                    values.pop(dead, None)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the values that are kept now, over all batches."""
        seen = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for values in self._values
            for value in values.values()
            for t in tensors_in(value)
        }
        return sum(seen.values())


def own(value: Any) -> Any:
    """A copy, which nodes may write to: the batch is the user's, and a replay leaves no trace."""
    return value.clone() if isinstance(value, Tensor) else value


def _last_uses(
    nodes: Sequence[fx.Node], place: Mapping[fx.Node, int]
) -> dict[fx.Node, list[fx.Node]]:
    """For each node the values that nobody reads after it."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        last = max((*node.users, node), key=place.__getitem__)
        found.setdefault(last, []).append(node)
    return found
