"""One run of a graph that tells a recorder what every node gives.

The run is on fake tensors (shapes without arithmetic) unless values are asked for, or the graph
does something only real tensors can answer. The model is left as it was either way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from chop.errors import PassError
from chop.ir.graph import MaseGraph
from chop.ir.meta import ValueMeta, mase_meta

Recorder = Callable[[fx.Node, Any], None]


def propagate(
    graph: MaseGraph, inputs: Mapping[str, Any], record: Recorder, *, real: bool, retry: bool = True
) -> None:
    """Run `graph` on `inputs` (placeholder -> value), calling `record(node, result)` for each node.

    With `real` False the run is on fake tensors; where those do not suffice and `retry` allows it,
    the whole run is repeated on real ones.
    """
    with evaluation_mode(graph.model):
        if not real:
            interpreter = _Recording(graph.model, record)
            try:
                _run_fake(interpreter, inputs)
                return
            except Exception as error:  # whatever a fake cannot do: the real run has the last word
                if not retry:
                    raise _failure(interpreter, error) from error
        interpreter = _Recording(graph.model, record)
        try:
            _run_real(interpreter, inputs)
        except Exception as error:
            raise _failure(interpreter, error) from error


class _Recording(fx.Interpreter):
    """An interpreter that reports each result, and remembers the node it was running."""

    def __init__(self, model: fx.GraphModule, record: Recorder) -> None:
        super().__init__(model)
        self.record = record
        self.current: fx.Node | None = None
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        self.current = n
        result = super().run_node(n)
        self.record(n, result)
        return result


def _run_fake(interpreter: _Recording, inputs: Mapping[str, Any]) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [_map_tensors(v, mode.from_tensor) for v in inputs.values()]
    with mode, torch.no_grad():
        interpreter.run(*fakes)


def _run_real(interpreter: _Recording, inputs: Mapping[str, Any]) -> None:
    copies = [_map_tensors(v, torch.clone) for v in inputs.values()]  # in-place ops spare the user
    with torch.no_grad(), kept_buffers(interpreter.module), torch.random.fork_rng():
        interpreter.run(*copies)


def _failure(interpreter: _Recording, error: Exception) -> PassError:
    node = interpreter.current
    where = f"node '{node.name}' ({node.op} {node.target})" if node else "the graph"
    first = str(error).split("\n\nWhile executing")[0].strip()
    return PassError(f"{where}: cannot run on dummy_in: {type(error).__name__}: {first}")


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode within; each as it was after."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Put back the buffers' values at the end."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(_map_tensors(v, change) for v in value)
    if isinstance(value, dict):
        return {k: _map_tensors(v, change) for k, v in value.items()}
    return value


def bind_inputs(graph: MaseGraph, given: Any, where: str) -> dict[str, Any]:
    """A value for each placeholder, in order, from what the user gave.

    `given` may be a mapping (keys the graph does not take are ignored), one tensor, or a sequence
    in the order of the placeholders; None means the inputs the graph was traced with.
    """
    given = graph.dummy_in if given is None else given
    takes = [node for node in graph.fx_graph.nodes if node.op == "placeholder"]
    names = ", ".join(str(node.target) for node in takes)
    if given is None:
        raise PassError(f"{where}: dummy_in is missing. Give a value for each input: {names}.")
    if isinstance(given, Tensor):
        given = (given,)
    if not isinstance(given, Mapping):
        given = _by_position(given, takes, where)
    device = _device_of(graph.model)
    return {
        str(node.target): _map_tensors(_pick(node, given, names, where), lambda t: t.to(device))
        for node in takes
    }


def _by_position(given: Any, takes: list[fx.Node], where: str) -> dict[str, Any]:
    names = [str(node.target) for node in takes]
    if not isinstance(given, Sequence) or isinstance(given, str):
        kind = type(given).__name__
        raise PassError(f"{where}: dummy_in must be a mapping, a tensor or a tuple, got {kind}.")
    if len(given) > len(names):
        raise PassError(
            f"{where}: dummy_in has {len(given)} values; the graph takes {len(names)}: "
            f"{', '.join(names)}."
        )
    return dict(zip(names, given, strict=False))


def _pick(node: fx.Node, given: Mapping[str, Any], names: str, where: str) -> Any:
    for name in (str(node.target), node.name):
        if name in given:
            return given[name]
    if node.args:  # the default of the forward's argument
        return node.args[0]
    has = ", ".join(str(key) for key in given) or "nothing"
    raise PassError(
        f"{where}: dummy_in has no '{node.target}'. The graph takes: {names}; given: {has}."
    )


def _device_of(model: nn.Module) -> torch.device:
    tensor = next(model.parameters(), None)
    return tensor.device if tensor is not None else torch.device("cpu")


def example_inputs(graph: MaseGraph) -> tuple[dict[str, Any], bool]:
    """Inputs like those the graph is annotated with, and whether they are the very values.

    Where no values were kept, they are zeros of the same shapes and dtypes.
    """
    results = {
        str(node.target): list((mase_meta(node).common.results or {}).values())
        for node in graph.fx_graph.nodes
        if node.op == "placeholder"
    }
    tensors = [r for found in results.values() for r in found if r.is_tensor]
    has_values = bool(tensors) and all(r.value is not None for r in tensors)
    return {name: _example(found) for name, found in results.items()}, has_values


def _example(results: list[ValueMeta]) -> Any:
    made = [_zeros(r) if r.is_tensor and r.value is None else r.value for r in results]
    return made[0] if len(made) == 1 else tuple(made)


def _zeros(result: ValueMeta) -> Tensor:
    return torch.zeros(result.shape or [], dtype=result.torch_dtype, device=result.device)
