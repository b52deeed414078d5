"""Recording of a running model as a torch.fx graph.

The model runs once under a `TorchFunctionMode` with `nn.Module.__call__` intercepted: leaf modules
become `call_module`, torch functions `call_function`, tensor methods `call_method`. Tensors are
known by identity; sizes are returned as tracked numbers (`chop.ir.trace.tracked`).
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from chop.errors import TraceError
from chop.ir.applied_function import AppliedFunction
from chop.ir.node_arguments import holds_tensor, tensors_in
from chop.ir.trace.decisions import Decision, model_line
from chop.ir.trace.effects import is_random_draw
from chop.ir.trace.environment import devices_seen_by, patched
from chop.ir.trace.result_cache import FakeResults, key_of, module_key
from chop.ir.trace.torch_names import (
    DTYPES,
    NUMBER_READS,
    PARTING,
    PARTING_ALIASES,
    PLAIN_TYPES,
    RANK_METHODS,
    SIZE_GETTERS,
    SIZE_METHODS,
    TENSOR_GETTERS,
    VALUE_READS,
    fx_target,
    works_in_place,
)
from chop.ir.trace.tracked import Expression, Tracked, ValueDependenceError, plain, track
from chop.log import get_logger

logger = get_logger(__name__)

LeafRule = Callable[[nn.Module, str], bool]


class Opaque:
    """Input that is not a tensor: functions of the graph receive it whole."""


class NeedsRealValuesError(Exception):
    """Fake tensors do not suffice: the model reads a value or creates a tensor unseen."""


def user_frame(frames: traceback.StackSummary | None = None) -> str:
    """Return `file:line in function: source` of the innermost frame of the model's code."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    stack = frames if frames is not None else traceback.extract_stack()
    frame = [f for f in stack if not f.filename.startswith(ours)][-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}"


class Recorder:
    """Graph under construction, and the source of every tensor seen so far."""

    def __init__(
        self,
        root: nn.Module,
        is_leaf: LeafRule,
        *,
        training: bool = False,
        specialize: bool = False,
        results: FakeResults | None = None,
    ) -> None:
        self.training = training
        self.results = results
        self.is_leaf = is_leaf
        self.specialize = specialize
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        self.module_names = {m: name for name, m in root.named_modules()}
        tensors = [*root.named_parameters(), *root.named_buffers()]
        self._tensor_names = {id(tensor): name for name, tensor in reversed(tensors)}
        self._known: dict[int, tuple[Any, Expression | fx.Node]] = {}
        self._differentiable: set[int] = set()
        self._owners: list[str] = [""]
        self.decisions: list[Decision] = []
        self._rank_known: set[int] = set()
        self.inside = False
        self._original_call = nn.Module.__call__

    def placeholder(self, name: str, value: Any, default: Any = inspect.Signature.empty) -> fx.Node:
        """Declare an input of the graph."""
        node = self.graph.placeholder(name, default_value=default)
        node.meta["owner"] = ""
        self.learn(value, node)
        return node

    def output(self, value: Any) -> None:
        """End the graph with `value`, nested as the model returned it."""
        self.graph.output(self.argument(value))

    def argument(self, value: Any) -> Any:
        """Return `value` as fx writes it: tensors and tracked numbers as nodes."""
        if isinstance(value, torch.Tensor):
            return self.tensor_node(value)
        if isinstance(value, Tracked):
            return value.expression.node
        if isinstance(value, torch.device | Opaque) and id(value) in self._known:
            return self._known_node(value)
        if isinstance(value, slice):
            return slice(*(self.argument(v) for v in (value.start, value.stop, value.step)))
        if isinstance(value, Mapping):
            return {key: self.argument(v) for key, v in value.items()}
        if isinstance(value, list):
            return [self.argument(v) for v in value]
        if isinstance(value, tuple):
            return tuple(self.argument(v) for v in value)
        if isinstance(value, type) and value in DTYPES:
            return DTYPES[value]
        if isinstance(value, PLAIN_TYPES):
            return float(value) if isinstance(value, float) else value  # a numpy float too
        raise TraceError(
            f"{user_frame()}: a value of type '{type(value).__name__}' reaches the graph. "
            "Only tensors, numbers, strings and containers of them can be recorded."
        )

    def _known_node(self, value: Any) -> fx.Node:
        _, source = self._known[id(value)]
        return source if isinstance(source, fx.Node) else source.node

    def tensor_node(self, tensor: torch.Tensor) -> fx.Node:
        """Return the node whose result is `tensor`, or a new one that reads it from the model."""
        if id(tensor) in self._known:
            return self._known_node(tensor)
        name = self._tensor_names.get(id(tensor))
        if name is None:
            if isinstance(tensor, FakeTensor):
                raise NeedsRealValuesError(f"a tensor made out of sight at {user_frame()}")
            count = sum(each.startswith("_tensor_constant") for each in self.attributes)
            name = f"_tensor_constant{count}"
        self.attributes[name] = tensor
        node = self.graph.create_node("get_attr", name)
        node.meta["owner"] = name.rpartition(".")[0]
        self._known[id(tensor)] = (tensor, node)
        return node

    def learn(self, value: Any, source: fx.Node | Expression, detached: bool = False) -> None:
        """Store the source of every tensor inside `value`."""
        if isinstance(value, torch.Tensor | torch.device | Opaque):
            origin = Expression(self, "detach", source) if detached else source
            self._known[id(value)] = (value, origin)  # the reference prevents reuse of its id
        elif isinstance(value, Mapping | tuple | list):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, item in items:
                part = Expression(self, operator.getitem, source, key)
                self.learn(item, part, detached)

    def write(self, function: Callable[..., Any] | str, args: tuple[Any, ...]) -> fx.Node:
        """Write a call of a function, or of a method given by name, on expressions and values."""
        op = "call_method" if isinstance(function, str) else "call_function"
        plain = tuple(a.node if isinstance(a, Expression) else a for a in args)
        nodes = tuple(a if isinstance(a, fx.Node) else self.argument(a) for a in plain)
        return self._create(op, function, nodes, {})

    def _create(self, op: str, target: Any, args: Any, kwargs: Any) -> fx.Node:
        node = self.graph.create_node(op, target, args, kwargs)
        node.meta["owner"] = self._owners[-1]
        return node

    def _tracked_size(self, value: Any, expression: Expression) -> Any:
        """Return sizes with their expressions: an int or a torch.Size."""
        if isinstance(value, tuple):
            items = (
                track(v, Expression(self, operator.getitem, expression, i))
                for i, v in enumerate(value)
            )
            return torch.Size(items) if isinstance(value, torch.Size) else tuple(items)
        return track(value, expression)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a torch function that the model called, and record it."""
        name = getattr(function, "__name__", "")
        if name in ("__get__", "__set__"):
            return self._attribute(function, args)
        if name in VALUE_READS and holds_tensor(args):
            return self._value_read(function, name, args, kwargs)
        if name in NUMBER_READS and holds_tensor(args):
            return self._number_read(function, args)
        result = self._run(function, name, args, kwargs)
        if name in SIZE_METHODS:
            return self._size(name, args, kwargs, result)
        if name in RANK_METHODS:
            self._decide_rank(args[0])
        if not holds_tensor(result) and name != "__setitem__":
            return result
        result = _fresh(result, (args, kwargs)) if not works_in_place(name, kwargs) else result
        self._record(function, name, args, kwargs, result)
        self._decide_count(name, args, kwargs, result)
        return result

    def _run(self, function: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Return the result; with fake tensors, a copy of the result of an equal call."""
        if self.results is None or works_in_place(name, kwargs) or name == "__setitem__":
            return function(*args, **kwargs)
        key = (function, key_of(args), key_of(kwargs))
        return self.results.of(key, lambda: function(*args, **kwargs))

    def _record(self, function: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        op, target, args = fx_target(function, name, args, kwargs)
        node = self._create(op, target, self.argument(tuple(args)), self.argument(kwargs))
        is_detached = not torch.is_grad_enabled() and self._have_gradient((args, kwargs))
        self.learn(result, node, detached=is_detached)
        self._mark(result, (args, kwargs))

    def _attribute(self, function: Any, args: tuple[Any, ...]) -> Any:
        name = function.__self__.__name__
        value = function(*args)
        tensor = args[0]
        expression = Expression(self, getattr, tensor, name)
        if function.__name__ == "__set__":
            return value
        if name in SIZE_GETTERS:
            self._decide_rank(tensor)
            return self._tracked_size(value, expression)
        if name == "ndim":
            self._decide_rank(tensor)
        if name == "device":
            return self._see_device(tensor, value)
        if name in TENSOR_GETTERS and isinstance(value, torch.Tensor):
            value = _fresh(value, args)
            self.learn(value, expression)
        return value

    def _size(self, name: str, args: Any, kwargs: Any, result: Any) -> Any:
        if isinstance(result, tuple):
            self._decide_rank(args[0])
        method, rest = ("size", (0,)) if name == "__len__" else (name, args[1:])
        expression = Expression(self, method, args[0], *rest, *kwargs.values())
        size = self._tracked_size(result, expression)
        if name == "__len__":  # Python converts it to a plain number, which has no expression
            self._note("eq", size, plain(size))
            return plain(size)
        return size

    def _see_device(self, tensor: torch.Tensor, value: torch.device) -> torch.device:
        """Return a new device object that is known as the device of `tensor`."""
        own = torch.device(value)
        self._known[id(own)] = (own, Expression(self, getattr, tensor, "device"))
        return own

    def _number_read(self, function: Any, args: tuple[Any, ...]) -> Any:
        tensor = next(a for a in args if isinstance(a, torch.Tensor))
        if isinstance(tensor, FakeTensor) and tensor.constant is None:
            raise NeedsRealValuesError(f"a number read from a tensor at {user_frame()}")
        expression = Expression(self, "item", tensor)
        return track(tensor.item(), expression, depends_on_data=not self.specialize)

    def _value_read(self, function: Any, name: str, args: Any, kwargs: Any) -> Any:
        if self.training and self._is_chance(args[0]):
            return False
        fake = [a for a in args if isinstance(a, FakeTensor) and a.constant is None]
        if fake:
            raise NeedsRealValuesError(f"'{name}' of a tensor at {user_frame()}")
        if not self.specialize and any(id(a) in self._known for a in args):
            raise ValueDependenceError(f"'{name}' of a tensor decides")
        return function(*args, **kwargs)

    def _is_chance(self, condition: torch.Tensor) -> bool:
        """Return True for `rand() < p`, as in layer drop; a trace assumes that it is false."""
        if id(condition) not in self._known:
            return False
        node = self._known_node(condition)
        draws = [n for n in node.all_input_nodes if is_random_draw(n)]
        if node.target not in (operator.lt, operator.le, operator.gt, operator.ge) or not draws:
            return False
        rate = node.args[1] if node.args[0] in draws else node.args[0]
        if rate != 0:
            logger.warning(
                "%s: a branch taken by chance is not captured; the graph never takes it.",
                user_frame(),
            )
        return True

    def decide(self, name: str, *operands: Any) -> None:
        """Store that the model's code branched on `operator.name(*operands)`."""
        if self.inside:
            return
        if any(getattr(o, "depends_on_data", False) for o in operands):
            raise ValueDependenceError(f"'{name}' of a number read from a tensor decides")
        self._note(name, *operands)

    def _note(self, name: str, *operands: Any) -> None:
        self.decisions.append(Decision(name, operands, model_line()))

    def _decide_rank(self, tensor: torch.Tensor) -> None:
        """Store that code depends on the rank of `tensor`: it is a plain number."""
        if id(tensor) in self._known and id(tensor) not in self._rank_known:
            self._rank_known.add(id(tensor))
            self._note("rank", tensor, tensor.dim())

    def _decide_count(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Store that code depends on the number of parts that a tensor is split into."""
        if name not in PARTING or type(result) not in (tuple, list):
            return
        arguments = dict(zip(PARTING[name], args, strict=False))
        arguments |= {PARTING_ALIASES.get(k, k): v for k, v in kwargs.items()}
        tensor, part, dim = arguments["self"], arguments.get("part", 1), arguments.get("dim", 0)
        if not isinstance(part, int):
            return  # a list of sizes: its length is the number of parts
        size = track(tensor.shape[dim], Expression(self, "size", tensor, dim))
        part = -(-size // part) if name == "chunk" else part
        self._note("eq", -(-size // part), len(result))

    def call_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a module that the model called; record a leaf as one node."""
        if self.inside:
            return self._original_call(module, *args, **kwargs)
        name = self.module_names.get(module)
        if name != "" and self.is_leaf(module, name or ""):
            return self._leaf(module, name or self._adopt(module), args, kwargs)
        self._owners.append(name or self._owners[-1])
        try:
            return self._original_call(module, *args, **kwargs)
        finally:
            self._owners.pop()

    def _leaf(self, module: nn.Module, name: str, args: Any, kwargs: Any) -> Any:
        nodes = self.argument(tuple(args)), self.argument(kwargs)
        self.attributes[name] = module
        node = self._create("call_module", name, *nodes)
        with self.not_recording(), torch._C.DisableTorchFunction():
            result = self._run_leaf(module, args, kwargs)
        if not getattr(module, "inplace", False):
            result = _fresh(result, (args, kwargs))
        self.learn(result, node)
        self._mark(result, (args, kwargs, list(module.parameters())))
        return result

    def _run_leaf(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        kind = None if self.results is None else module_key(module)
        if self.results is None or kind is None or getattr(module, "inplace", False):
            return self._original_call(module, *args, **kwargs)
        key = (kind, key_of(args), key_of(kwargs))
        return self.results.of(key, lambda: self._original_call(module, *args, **kwargs))

    def _mark(self, result: Any, inputs: Any) -> None:
        """Store that a gradient can flow through a result."""
        if torch.is_grad_enabled() and self._have_gradient(inputs):
            self._differentiable.update(id(t) for t in tensors_in(result))

    def _have_gradient(self, inputs: Any) -> bool:
        return any(t.requires_grad or id(t) in self._differentiable for t in tensors_in(inputs))

    def _adopt(self, module: nn.Module) -> str:
        """Name a module that forward creates, such as a loss: `crossentropyloss_0`."""
        kind = type(module).__name__.lower()
        prefix = f"{self._owners[-1]}." if self._owners[-1] else ""
        number = 0
        while f"{prefix}{kind}_{number}" in self.attributes:
            number += 1
        self.module_names[module] = f"{prefix}{kind}_{number}"
        return self.module_names[module]

    def call_whole(self, target: Any, run: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Record a function as one node; `run` computes its result."""
        with self.not_recording(), torch._C.DisableTorchFunction():
            result = run(*args, **kwargs)
        result = _fresh(result, (args, kwargs))
        nodes = self.argument(tuple(args)), self.argument(kwargs)
        self.learn(result, self._create("call_function", target, *nodes))
        self._mark(result, (args, kwargs))
        return result

    @contextlib.contextmanager
    def not_recording(self) -> Iterator[None]:
        """Do not record inside the context."""
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before

    @contextlib.contextmanager
    def undecided(self) -> Iterator[None]:
        """Record inside the context, without decisions by sizes: they hold at any size."""
        decisions = list(self.decisions)
        yield
        self.decisions = decisions

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record the model's calls inside the context."""
        recorder = self
        apply = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

        def call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return recorder.call_module(module, args, kwargs)

        def call_autograd(cls: Any, *args: Any, **kwargs: Any) -> Any:
            run = MethodType(apply, cls)
            if recorder.inside:
                return run(*args, **kwargs)
            return recorder.call_whole(AppliedFunction(cls), run, args, kwargs)

        def see_device(tensor: torch.Tensor, device: torch.device) -> torch.device:
            return device if recorder.inside else recorder._see_device(tensor, device)

        with (
            patched(nn.Module, "__call__", call_module),
            patched(torch.autograd.Function, "apply", classmethod(call_autograd)),
            devices_seen_by(see_device),
            _RecordingMode(self),
        ):
            yield
        self.inside = True  # no decisions by numbers that outlive the run


class _RecordingMode(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.recorder.inside:
            return func(*args, **(kwargs or {}))
        with self.recorder.not_recording():
            return self.recorder.call(func, args, kwargs or {})


def _fresh(result: Any, inputs: Any) -> Any:
    """Return `result` with aliases in place of tensors that are inputs, so that ids differ."""
    inputs_by_id = {id(t) for t in tensors_in(inputs)}
    if not any(id(t) in inputs_by_id for t in tensors_in(result)):
        return result

    def renew(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.ops.aten.alias(value) if id(value) in inputs_by_id else value
        if type(value) in (tuple, list):
            return type(value)(renew(v) for v in value)
        return value

    with torch._C.DisableTorchFunction():
        return renew(result)
