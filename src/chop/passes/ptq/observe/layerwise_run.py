"""Run of a graph over many batches in steps, with stops before chosen nodes.

The inputs of a node can be read, and its module changed, before any later node runs. Between two
stops only those values stay that a later node reads, so memory does not grow with the depth of the
model.

`PairedRun` also runs the float reference. Errors of rounded layers reach the layers behind them; if
the float inputs of a layer are known, its weights can compensate for these errors too.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from chop.errors import ChopError, ConfigError, PassError
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import tensors_in
from chop.ir.trace.effects import is_mutation
from chop.nn.modules.masked import stored_weight
from chop.nn.quantized.layer import QuantizedModule
from chop.nn.quantizers import Bypass
from chop.passes.ptq.observe.carried_batch import CarriedBatch, reference_of, values_of
from chop.passes.rewrite.propagate import bind_inputs, undisturbed
from chop.passes.rewrite.split_experts import ExpertCall, expert_calls

WATCHED = 4
"""Batches on which values are searched for NaN."""


class LayerwiseRun:
    """Values of a graph on a list of batches, up to the current node.

    with LayerwiseRun(graph, batches, "gptq.data") as run:
        for node in layers:
            for x in run.operands(node): ...
    """

    def __init__(self, graph: MaseGraph, batches: Iterable[Any], where: str) -> None:
        self.graph = graph
        self.nodes: list[fx.Node] = list(graph.fx_graph.nodes)
        self._place = {node: i for i, node in enumerate(self.nodes)}
        self._last_use: dict[fx.Node, list[fx.Node]] = {}
        self.experts = expert_calls(graph)
        later = _later_readers(self.experts)
        for node in self.nodes:  # the values that no later node reads
            last = max((*node.users, node, *later.get(node, ())), key=self._place.__getitem__)
            self._last_use.setdefault(last, []).append(node)
        self._position = 0
        self._where = where
        self._values = [values_of(batch, self._inputs(batch)) for batch in batches]
        if not self._values:
            raise ConfigError(f"{where}: no batch was given. Give at least one.")
        self._context = contextlib.ExitStack()

    def __enter__(self) -> LayerwiseRun:
        self._context.enter_context(undisturbed(self.graph.model))
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.close()
        for stored in self._values:
            stored.close()
        self._values = []

    def _inputs(self, batch: Any) -> dict[fx.Node, Any]:
        """Return the values of the placeholders; they are copied unless nothing writes to them."""
        values = bind_inputs(self.graph, batch, self._where)
        is_shared = isinstance(batch, CarriedBatch) and not any(map(is_mutation, self.nodes))
        return {
            node: values[str(node.target)] if is_shared else own(values[str(node.target)])
            for node in self.nodes
            if node.op == "placeholder"
        }

    def operands(self, node: fx.Node) -> Iterator[Tensor]:
        """Run up to `node`, then yield its first operand for each batch."""
        self.advance(node)
        source = _source(node)
        for stored in self._values:
            yield stored.read()[source]

    def operands_of_calls(self, calls: Sequence[fx.Node]) -> Iterator[list[Tensor]]:
        """Run up to the first of `calls`, then yield the first operand of each, batch by batch.

        The nodes between the calls run with their current layers; the run itself does not move.
        """
        self.advance(calls[0])
        sources = [_source(node) for node in calls]
        for batch, stored in enumerate(self._values):
            is_one = len(calls) == 1  # needs no run, and no copy of the values
            yield [stored.read()[sources[0]]] if is_one else self.replay(batch, calls[-1], sources)

    def rows_of_all(self, node: fx.Node, batch: int) -> Tensor:
        """Return all rows of a batch as the input of one expert's layer, at the current `node`.

        Rows that the router sends to other experts pass through this expert's layers before.
        """
        call, values = self.experts[node], self._values[batch].read()
        if call.source is None:
            return cast(Tensor, values[call.x])
        values = dict(values)
        rows, ends = values[call.source], values[call.ends].clone()
        ends[: call.expert], ends[call.expert :] = 0, len(rows)
        values[call.ends] = ends
        self._run(call.between, values, call.between)
        return cast(Tensor, values[call.x])

    def arguments(self, node: fx.Node) -> Iterator[tuple[Any, Any]]:
        """Run up to `node`, then yield its args and kwargs for each batch."""
        self.advance(node)
        for stored in self._values:
            yield fx.node.map_arg((node.args, node.kwargs), stored.read().__getitem__)

    def advance(self, to: fx.Node) -> None:
        """Run every batch up to but excluding `to`."""
        end = self._place[to]
        stretch = self.nodes[self._position : end]
        if stretch:
            for number, stored in enumerate(self._values):
                values = stored.read()
                with running(self._where, number):
                    self._run(stretch, values)
                stored.write(values)
            self._position = end

    def replay(self, batch: int, end: fx.Node, results: Sequence[fx.Node]) -> list[Any]:
        """Return `results` on one batch, run from here to `end`; the run itself does not move."""
        values = {node: own(value) for node, value in self._values[batch].read().items()}
        stretch = self.nodes[self._position : self._place[end]]
        self._run(stretch, values, results)
        return [values[node] for node in results]

    def has_nan(self, end: fx.Node) -> bool:
        """Return True if a value that is read from `end` on is NaN, on one of the first batches.

        They are run from here to `end`; the run itself does not move.
        """
        stretch = self.nodes[self._position : self._place[end]]
        for stored in self._values[:WATCHED]:
            values = {node: own(value) for node, value in stored.read().items()}
            self._run(stretch, values)
            if any(t.isnan().any() for value in values.values() for t in tensors_in(value)):
                return True
        return False

    def modules_from(self, node: fx.Node) -> set[nn.Module]:
        """Return the modules that are called at `node` or behind it."""
        rest = self.nodes[self._place[node] :]
        return {
            self.graph.model.get_submodule(str(n.target)) for n in rest if n.op == "call_module"
        }

    def values(self, batch: int, nodes: Sequence[fx.Node]) -> list[Any]:
        """Return values on one batch, of nodes that are still to be read."""
        values = self._values[batch].read()
        return [values[node] for node in nodes]

    def results(self) -> Iterator[Any]:
        """Run to the end and yield the model's result for each batch."""
        output = self.nodes[-1]
        self.advance(output)
        for stored in self._values:
            yield fx.node.map_arg(output.args[0], stored.read().__getitem__)

    def _run(
        self, stretch: Sequence[fx.Node], values: dict[fx.Node, Any], keeps: Sequence[fx.Node] = ()
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
        """Bytes of all stored values, over all batches."""
        storages = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for stored in self._values
            for value in stored.read().values()
            for t in tensors_in(value)
        }
        return sum(storages.values())


def _later_readers(experts: Mapping[fx.Node, ExpertCall]) -> dict[fx.Node, list[fx.Node]]:
    """Return the nodes for which `rows_of_all` reads values again, by the node of the value."""
    later: dict[fx.Node, list[fx.Node]] = {}
    for node, call in experts.items():
        for value in (call.x, call.ends, *call.inputs):
            later.setdefault(value, []).append(node)
    return later


def _source(node: fx.Node) -> fx.Node:
    """Return the first operand of a node."""
    source = node.args[0] if node.args else next(iter(node.kwargs.values()))
    assert isinstance(source, fx.Node), f"{node.name} has no operand"
    return source


def calls_of(node: fx.Node) -> list[fx.Node]:
    """Return all nodes that call the module that `node` calls, in the order of the graph."""
    return [n for n in node.graph.nodes if n.op == node.op and n.target == node.target]


def own(value: Any) -> Any:
    """Return a copy that nodes may write to; the batch belongs to the user."""
    return value.clone() if isinstance(value, Tensor) else value


class PairedRun:
    """Two runs of one graph: `now` with formats and current weights, `before` without changes.

    with PairedRun(graph, batches, "gptq.data") as run:
        for node, layer in layers:
            for x, float_x in run.operands_of_calls([node]): ...
            run.remember(layer)
            layer.weight = ...

    `weights`: original weights of layers that changed earlier.
    """

    def __init__(
        self,
        graph: MaseGraph,
        batches: Iterable[Any],
        where: str,
        weights: Mapping[nn.Module, nn.Parameter] | None = None,
    ) -> None:
        batches = list(batches)
        self.graph = graph
        self.now = LayerwiseRun(graph, batches, where)
        self.before = LayerwiseRun(graph, [reference_of(batch) for batch in batches], where)
        self._context = contextlib.ExitStack()
        called = Counter(str(n.target) for n in graph.fx_graph.nodes if n.op == "call_module")
        several = [graph.model.get_submodule(target) for target, n in called.items() if n > 1]
        # later calls of these read the weight as it is now
        shared = {m: w for m in several if (w := m._parameters.get("weight")) is not None}
        self._weights: dict[nn.Module, nn.Parameter] = {**shared, **(weights or {})}

    def __enter__(self) -> PairedRun:
        self._context.enter_context(self.now)
        self._context.enter_context(self.before)
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.close()

    def operands_of_calls(
        self, calls: Sequence[fx.Node]
    ) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yield the first operands of `calls` for each batch, with and without formats."""
        self.advance_before(calls[0])
        references = self.before.operands_of_calls(calls)
        for now in self.now.operands_of_calls(calls):
            with self._without_changes():
                before = next(references)
            yield now, before

    def remember(self, layer: nn.Module) -> None:
        """Store the original weight of `layer`, which may change afterwards."""
        self._weights.setdefault(layer, stored_weight(layer))

    def advance_before(self, to: fx.Node) -> None:
        """Run the reference up to but excluding `to`; drop weights that it does not use again."""
        with self._without_changes():
            self.before.advance(to)
        later = self.before.modules_from(to)
        self._weights = {layer: w for layer, w in self._weights.items() if layer in later}

    @contextmanager
    def _without_changes(self) -> Iterator[None]:
        """Give every layer its original weight and no format inside the context."""
        with formats_off(self.graph.model), contextlib.ExitStack() as stack:
            for layer, weight in self._weights.items():
                stack.callback(setattr, layer, "weight", stored_weight(layer))
                layer.weight = weight
            yield


@contextlib.contextmanager
def formats_off(model: nn.Module) -> Iterator[None]:
    """Make every quantised layer compute in floating point inside the context."""
    with contextlib.ExitStack() as stack:
        for layer in model.modules():
            if isinstance(layer, QuantizedModule):
                stack.callback(setattr, layer, "quantizers", layer.quantizers)
                layer.quantizers = dict.fromkeys(layer.quantizers, Bypass())
        yield


@contextmanager
def running(where: str, number: int) -> Iterator[None]:
    """Name the batch in the error if a graph does not run on it."""
    try:
        yield
    except ChopError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise PassError(
            f"{where}: the graph does not run on batch {number}: {reason}. "
            "Give batches like the inputs that the graph was captured with."
        ) from error


def calibration_batches(data: Any, num_samples: int | None, where: str) -> list[Any]:
    """Return the batches of `data` up to `num_samples` rows; all of them without a number.

    `data` is an iterable of batches (mappings, tensors or tuples), or a function that returns one.
    """
    source = source_of(data)
    if source is None or isinstance(source, Tensor | Mapping | str):
        kind = type(source).__name__
        raise ConfigError(f"{where}: expected an iterable of batches, got {kind}.")
    if num_samples is not None and num_samples < 1:
        raise ConfigError(f"{where}: num_samples must be at least 1, got {num_samples}.")
    batches = list(first_batches(source, num_samples))
    if not batches:
        raise ConfigError(f"{where}: no batch was given. Give at least one.")
    for number, batch in enumerate(batches):
        check_not_empty(batch, f"{where}: batch {number}")
    return batches


def check_not_empty(batch: Any, where: str) -> None:
    """Raise for a batch that is None, or one of whose tensors has no elements."""
    if batch is None:
        raise ConfigError(f"{where} is None. Allowed: a mapping, a tensor or a tuple with rows.")
    for tensor in tensors_in(batch):
        if tensor.numel() == 0:
            raise ConfigError(
                f"{where} is empty: it has a tensor of shape {list(tensor.shape)}. Give one row or "
                "more in every batch."
            )


def source_of(data: Any) -> Any:
    """Return the iterable that `data` is, or that it returns when called."""
    return data() if callable(data) and not isinstance(data, Iterable) else data


def first_batches(source: Iterable[Any], num_samples: int | None) -> Iterator[Any]:
    """Yield batches until `num_samples` rows are reached; all of them without a number."""
    rows = 0
    for batch in source:
        yield batch
        first = next(tensors_in(batch), torch.zeros(1))
        rows += first.shape[0] if first.dim() else 1
        if num_samples is not None and rows >= num_samples:
            return
