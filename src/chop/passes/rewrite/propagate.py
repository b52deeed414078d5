"""One run of a graph that reports the result of every node to a recorder.

Shapes need no arithmetic: the run is on meta tensors where it can be, on fake tensors where the
graph asks what only those know, and on real ones where it asks for values or values are wanted.
The model is left as it was in every case.
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
from chop.ir.trace.effects import is_mutation
from chop.ir.trace.environment import evaluation_mode, kept_buffers, quiet
from chop.ir.trace.result_cache import is_hashable, key_of, module_key

Recorder = Callable[[fx.Node, Any], None]


def propagate(
    graph: MaseGraph, inputs: Mapping[str, Any], record: Recorder, *, real: bool, retry: bool = True
) -> None:
    """Run `graph` on `inputs` (placeholder -> value), calling `record(node, result)` for each node.

    With `real` False the cheapest world that can run the graph is used, the real one last and only
    where `retry` allows it; a run that fails is repeated from the start in the next.
    """
    worlds: list[World] = [_run_real] if real else [_run_meta, _run_fake]
    worlds += [_run_real] if retry and not real else []
    with evaluation_mode(graph.model), torch.no_grad():
        for world in worlds:
            interpreter = _Recording(graph.model, record)
            try:
                with _kept_attributes(graph.model):
                    world(interpreter, inputs)
                return
            except Exception as error:  # whatever this world cannot do: the last has the last word
                if world is worlds[-1]:
                    raise _failure(interpreter, error) from error


class _Recording(fx.Interpreter):
    """An interpreter that reports each result, and remembers the node it was running."""

    def __init__(self, model: fx.GraphModule, record: Recorder) -> None:
        super().__init__(model)
        self.model = model
        self.record = record
        self.current: fx.Node | None = None
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        self.current = n
        result = super().run_node(n)
        self.record(n, result)
        return result


World = Callable[[_Recording, Mapping[str, Any]], None]
META = torch.device("meta")


class _OnMeta(_Recording):
    """Runs on meta tensors, equal calls once: the layers of a deep model cost what one does."""

    def __init__(self, model: fx.GraphModule, record: Recorder) -> None:
        super().__init__(model, record)
        self.known: dict[Any, Any] = {}
        self.is_written = any(is_mutation(node) for node in self.graph.nodes)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _map_tensors(super().get_attr(target, args, kwargs), _to_meta)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = _on_meta(args), _on_meta(kwargs)
        return self._once(target, target, args, kwargs, super().call_function)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = _on_meta(args), _on_meta(kwargs)
        return self._once(target, target, args, kwargs, super().call_method)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        kind = module_key(self.fetch_attr(target))
        return self._once(kind, target, args, kwargs, super().call_module)

    def _once(self, kind: Any, target: Any, args: Any, kwargs: Any, run: Any) -> Any:
        if kind is None or str(getattr(kind, "__name__", kind)).endswith("_"):  # in place
            return run(target, args, kwargs)
        key = (kind, key_of(args), key_of(kwargs))
        if not is_hashable(key):
            return run(target, args, kwargs)
        if key not in self.known:
            self.known[key] = run(target, args, kwargs)
        # A tensor without data can stand for many, unless a node may change its shape in place.
        found = self.known[key]
        return _map_tensors(found, _to_meta) if self.is_written else found


def _on_meta(argument: Any) -> Any:
    """`argument` with every device in it replaced by the meta device."""
    if isinstance(argument, torch.device):
        return META
    if isinstance(argument, tuple):
        return tuple(map(_on_meta, argument)) if type(argument) is tuple else argument
    if isinstance(argument, dict):
        return {k: META if k == "device" else _on_meta(v) for k, v in argument.items()}
    return argument


def _to_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def _run_meta(interpreter: _Recording, inputs: Mapping[str, Any]) -> None:
    runner = _OnMeta(interpreter.model, interpreter.record)
    empty = [_map_tensors(v, _to_meta) for v in inputs.values()]
    with META, _emptied(interpreter.module):
        runner.run(*empty)


@contextlib.contextmanager
def _emptied(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers, all of one device, replaced by meta tensors within."""
    if len({t.device for t in (*model.parameters(), *model.buffers())}) > 1:
        raise PassError("meta tensors cannot tell devices apart.")
    stores: list[dict[str, Any]] = [
        store for m in model.modules() for store in (m._parameters, m._buffers) if store
    ]
    before = [dict(store) for store in stores]
    made = {id(t): t for kept in before for t in kept.values() if t is not None}
    empty = {key: _to_meta(tensor) for key, tensor in made.items()}
    try:
        for store, kept in zip(stores, before, strict=True):
            store.update({n: t if t is None else empty[id(t)] for n, t in kept.items()})
        yield
    finally:
        for store, kept in zip(stores, before, strict=True):
            store.clear()
            store.update(kept)


def _run_fake(interpreter: _Recording, inputs: Mapping[str, Any]) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [_map_tensors(v, mode.from_tensor) for v in inputs.values()]
    # A write to a buffer alone, with no fake operand, happens for real in a fake world too.
    with kept_buffers(interpreter.model), mode, quiet("torch._subclasses.fake_tensor"):
        interpreter.run(*fakes)


def _run_real(interpreter: _Recording, inputs: Mapping[str, Any]) -> None:
    copies = [_map_tensors(v, torch.clone) for v in inputs.values()]  # in-place ops spare the user
    with kept_buffers(interpreter.model), kept_random_state(interpreter.model):
        interpreter.run(*copies)


def _failure(interpreter: _Recording, error: Exception) -> PassError:
    node = interpreter.current
    where = f"node '{node.name}' ({node.op} {node.target})" if node else "the graph"
    first = str(error).split("\n\nWhile executing")[0].strip()
    return PassError(f"{where}: cannot run on dummy_in: {type(error).__name__}: {first}")


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluate without gradients; afterwards restore mode, buffers and the random state."""
    with torch.no_grad(), evaluation_mode(model), kept_buffers(model), kept_random_state(model):
        yield


def kept_random_state(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Put back the random state of the CPU and of the device the model is on."""
    device = device_of(model)
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@contextlib.contextmanager
def _kept_attributes(model: nn.Module) -> Iterator[None]:
    """Put back what a module of the user's sets on itself as it runs, such as a cached mask."""
    own = [m for m in model.modules() if not type(m).__module__.startswith("torch.")]
    before = [(module.__dict__, dict(module.__dict__)) for module in own]
    try:
        yield
    finally:
        for attributes, kept in before:
            attributes.clear()
            attributes.update(kept)


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
    device = device_of(graph.model)
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
    has = ", ".join(str(key) for key in given.keys()) or "nothing"  # noqa: SIM118
    raise PassError(
        f"{where}: dummy_in has no '{node.target}'. The graph takes: {names}; given: {has}."
    )


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter; the CPU for a model that has none."""
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
    nested = {n: v for n, v in (graph.dummy_in or {}).items() if len(results.get(n, ())) > 1}
    return {n: nested.get(n, _example(found)) for n, found in results.items()}, has_values


def _example(results: list[ValueMeta]) -> Any:
    made = [_zeros(r) if r.is_tensor and r.value is None else r.value for r in results]
    return made[0] if len(made) == 1 else tuple(made)


def _zeros(result: ValueMeta) -> Tensor:
    return torch.zeros(result.shape or [], dtype=result.torch_dtype, device=result.device)
