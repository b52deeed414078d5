"""One run of a graph that reports the result of every node to a recorder.

Shapes need no arithmetic. The run uses meta tensors if possible, and fake tensors if the graph asks
for devices. It uses real tensors if the graph or the caller needs values. The model stays
unchanged.
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

    With `real` False, try meta tensors, fake tensors and, if `retry` allows it, real ones. A run
    that fails starts again with the next kind.
    """
    kinds: list[Run] = [_run_real] if real else [_run_meta, _run_fake]
    kinds += [_run_real] if retry and not real else []
    own = [m for m in graph.model.modules() if not type(m).__module__.startswith("torch.")]
    with evaluation_mode(graph.model), torch.no_grad():
        for run in kinds:
            interpreter = _Recording(graph.model, record)
            try:
                # a user's module may set attributes of its own, such as a cached mask
                with _restored([module.__dict__ for module in own]):
                    run(interpreter, inputs)
                return
            except Exception as error:  # anything this kind cannot do: the last one reports it
                if run is kinds[-1]:
                    node = interpreter.current
                    where = f"node '{node.name}' ({node.op} {node.target})" if node else "the graph"
                    reason = str(error).split("\n\nWhile executing")[0].strip()
                    message = f"cannot run on dummy_in: {type(error).__name__}: {reason}"
                    raise PassError(f"{where}: {message}") from error


class _Recording(fx.Interpreter):
    """An interpreter that reports each result, and stores the current node."""

    def __init__(self, model: fx.GraphModule, record: Recorder) -> None:
        super().__init__(model)
        self.model, self.record = model, record
        self.current: fx.Node | None = None
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        self.current = n
        result = super().run_node(n)
        self.record(n, result)
        return result


Run = Callable[[_Recording, Mapping[str, Any]], None]
META = torch.device("meta")


class _OnMeta(_Recording):
    """A run on meta tensors that computes equal calls once, so depth costs little."""

    def __init__(self, model: fx.GraphModule, record: Recorder) -> None:
        super().__init__(model, record)
        self.cache: dict[Any, Any] = {}
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
        is_in_place = str(getattr(kind, "__name__", kind)).endswith("_")
        key = (kind, key_of(args), key_of(kwargs))
        if kind is None or is_in_place or not is_hashable(key):
            return run(target, args, kwargs)
        if key not in self.cache:
            self.cache[key] = run(target, args, kwargs)
        # A tensor without data can be shared, unless a node may change its shape in place.
        result = self.cache[key]
        return _map_tensors(result, _to_meta) if self.is_written else result


def _on_meta(argument: Any) -> Any:
    """Replace every device in `argument` by the meta device."""
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
    """Replace parameters and buffers, all of one device, by meta tensors inside the context."""
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    if len({t.device for t in tensors.values()}) > 1:
        raise PassError("meta tensors cannot tell devices apart.")
    empty = {key: _to_meta(tensor) for key, tensor in tensors.items()}
    stores: list[dict[str, Any]] = [
        store for m in model.modules() for store in (m._parameters, m._buffers) if store
    ]
    with _restored(stores):
        for store in stores:
            store.update({n: t if t is None else empty[id(t)] for n, t in store.items()})
        yield


@contextlib.contextmanager
def _restored(stores: list[dict[str, Any]]) -> Iterator[None]:
    before = [dict(store) for store in stores]
    try:
        yield
    finally:
        for store, entries in zip(stores, before, strict=True):
            store.clear()
            store.update(entries)


def _run_fake(interpreter: _Recording, inputs: Mapping[str, Any]) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [_map_tensors(v, mode.from_tensor) for v in inputs.values()]
    # A write to a buffer alone, with no fake operand, also happens for real here.
    with kept_buffers(interpreter.model), mode, quiet("torch._subclasses.fake_tensor"):
        interpreter.run(*fakes)


def _run_real(interpreter: _Recording, inputs: Mapping[str, Any]) -> None:
    copies = [_map_tensors(v, torch.clone) for v in inputs.values()]  # in-place ops write to these
    with kept_buffers(interpreter.model), kept_random_state(interpreter.model):
        interpreter.run(*copies)


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluate without gradients; afterwards restore mode, buffers and the random state."""
    with torch.no_grad(), evaluation_mode(model), kept_buffers(model), kept_random_state(model):
        yield


def kept_random_state(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Restore the random state of the CPU and of the model's device at the end of the context."""
    device = device_of(model)
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(_map_tensors(v, change) for v in value)
    if isinstance(value, dict):
        return {k: _map_tensors(v, change) for k, v in value.items()}
    return value


def bind_inputs(graph: MaseGraph, values: Any, where: str) -> dict[str, Any]:
    """Return a value for each placeholder, in order, from the user's `values`.

    `values` is a mapping (other keys than the graph's inputs are ignored), one tensor, or a
    sequence in the order of the placeholders; None means the inputs the graph was traced with.
    """
    values = graph.dummy_in if values is None else values
    placeholders = [node for node in graph.fx_graph.nodes if node.op == "placeholder"]
    names = ", ".join(str(node.target) for node in placeholders)
    if values is None:
        raise PassError(f"{where}: dummy_in is missing. Give a value for each input: {names}.")
    if isinstance(values, Tensor):
        values = (values,)
    if not isinstance(values, Mapping):
        values = _by_position(values, [str(node.target) for node in placeholders], where)
    device = device_of(graph.model)
    return {
        str(node.target): _map_tensors(_pick(node, values, names, where), lambda t: t.to(device))
        for node in placeholders
    }


def _by_position(values: Any, names: list[str], where: str) -> dict[str, Any]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        kind = type(values).__name__
        raise PassError(f"{where}: dummy_in must be a mapping, a tensor or a tuple, got {kind}.")
    if len(values) > len(names):
        raise PassError(
            f"{where}: dummy_in has {len(values)} values; the graph takes {len(names)}: "
            f"{', '.join(names)}."
        )
    return dict(zip(names, values, strict=False))


def _pick(node: fx.Node, values: Mapping[str, Any], names: str, where: str) -> Any:
    for name in (str(node.target), node.name):
        if name in values:
            return values[name]
    if node.args:  # the default of the forward's argument
        return node.args[0]
    has = ", ".join(str(key) for key in values.keys()) or "nothing"  # noqa: SIM118
    raise PassError(
        f"{where}: dummy_in has no '{node.target}'. The graph takes: {names}; given: {has}."
    )


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter; the CPU for a model without parameters."""
    tensor = next(model.parameters(), None)
    return tensor.device if tensor is not None else torch.device("cpu")


def example_inputs(graph: MaseGraph) -> tuple[dict[str, Any], bool]:
    """Return inputs like those of the annotation, and True if they are the original values.

    Without stored values, they are zeros of the same shapes and dtypes.
    """
    results = {
        str(node.target): list((mase_meta(node).common.results or {}).values())
        for node in graph.fx_graph.nodes
        if node.op == "placeholder"
    }
    tensors = [r for entries in results.values() for r in entries if r.is_tensor]
    has_values = bool(tensors) and all(r.value is not None for r in tensors)
    nested = {n: v for n, v in (graph.dummy_in or {}).items() if len(results.get(n, ())) > 1}
    return {n: nested.get(n, _example(entries)) for n, entries in results.items()}, has_values


def _example(results: list[ValueMeta]) -> Any:
    values = [
        torch.zeros(r.shape or [], dtype=r.torch_dtype, device=r.device)
        if r.is_tensor and r.value is None
        else r.value
        for r in results
    ]
    return values[0] if len(values) == 1 else tuple(values)
