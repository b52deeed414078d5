"""Records what a model does, while it runs, as a torch.fx graph.

The model runs once under a `TorchFunctionMode` with `nn.Module.__call__` intercepted: leaf modules
become `call_module`, torch functions `call_function`, tensor methods `call_method`. Tensors are
known by identity; sizes come back as tracked numbers (`chop.ir.tracked`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from chop.errors import TraceError
from chop.ir.environment import devices_seen_by, patched
from chop.ir.sameness import FakeResults, key_of, module_key
from chop.ir.tracked import Expression, Tracked, ValueDependenceError, track
from chop.log import get_logger

logger = get_logger(__name__)

LeafRule = Callable[[nn.Module, str], bool]

_SIZE_METHODS = {"size", "numel", "nelement", "__len__", "stride", "storage_offset"}
_SIZE_GETTERS = {"shape"}
_TENSOR_GETTERS = {"T", "mT", "H", "mH", "real", "imag", "data", "grad"}
_NUMBER_READS = {"item": "item", "__int__": "item", "__float__": "item", "__index__": "item"}
_VALUE_READS = {"__bool__", "is_nonzero", "tolist", "numpy", "__array__", "equal", "allclose"}
_INPLACE_OPERATORS = {
    "__iadd__": operator.iadd,
    "__isub__": operator.isub,
    "__imul__": operator.imul,
    "__itruediv__": operator.itruediv,
    "__idiv__": operator.itruediv,
    "__ifloordiv__": operator.ifloordiv,
    "__ipow__": operator.ipow,
    "__iand__": operator.iand,
    "__ior__": operator.ior,
    "__ixor__": operator.ixor,
    "__imod__": operator.imod,
}
_OPERATORS = {
    "__add__": operator.add,
    "__sub__": operator.sub,
    "__mul__": operator.mul,
    "__truediv__": operator.truediv,
    "__div__": operator.truediv,
    "__floordiv__": operator.floordiv,
    "__mod__": operator.mod,
    "__pow__": operator.pow,
    "__matmul__": operator.matmul,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "__lshift__": operator.lshift,
    "__rshift__": operator.rshift,
    "__eq__": operator.eq,
    "__ne__": operator.ne,
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
    "__neg__": operator.neg,
    "__pos__": operator.pos,
    "__abs__": abs,
    "__invert__": operator.invert,
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
    **_INPLACE_OPERATORS,
}
_SWAPPED = {
    f"__r{name[2:]}": function
    for name, function in _OPERATORS.items()
    if f"__r{name[2:]}" in dir(torch.Tensor)
}
_DUNDERS = {
    getattr(torch.Tensor, name): name
    for name in (*_OPERATORS, *_SWAPPED)
    if inspect.isfunction(getattr(torch.Tensor, name, None))
}
"""Operators written in Python: torch gives them the name of the method they call."""
_METHOD_OPERATORS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "true_divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
    "matmul": operator.matmul,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
"""`x + y` reaches torch as the method `add`; with two plain operands it is written as `+`."""
_SIDE_EFFECTS = {operator.setitem, *_INPLACE_OPERATORS.values()}
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    range,
)


class NeedsRealValuesError(Exception):
    """Fake tensors are not enough: the model reads a value or keeps one out of sight."""


def is_mutation(node: fx.Node, module_of: Callable[[str], nn.Module] | None = None) -> bool:
    """Whether running `node` changes a tensor in place, so that it may never be removed."""
    if node.op == "call_method":
        return _names_mutation(str(node.target))
    if node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        asked = node.kwargs.get("inplace") is True or node.kwargs.get("out") is not None
        return asked or node.target in _SIDE_EFFECTS or _names_mutation(name)
    if node.op == "call_module":
        owner = node.graph.owning_module
        find = module_of or (owner.get_submodule if owner is not None else None)
        module = find(str(node.target)) if find is not None else None
        return getattr(module, "inplace", False) or getattr(module, "has_side_effect", False)
    return False


RANDOM_DRAWS = (torch.rand, torch.randn, torch.randint, torch.rand_like, torch.randn_like)


def is_random_draw(node: fx.Node) -> bool:
    """Whether `node` makes a tensor of random numbers."""
    return node.op == "call_function" and node.target in RANDOM_DRAWS


def _names_mutation(name: str) -> bool:
    """torch ends the names of in-place operations in one underscore; Python keywords too."""
    return name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_", "not_")


def user_frame(frames: traceback.StackSummary | None = None) -> str:
    """`file:line in function: source` of the innermost of these frames that is the model's."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    stack = frames if frames is not None else traceback.extract_stack()
    frame = [f for f in stack if not f.filename.startswith(ours)][-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}"


class Recorder:
    """The graph under construction and what is known about every tensor in flight."""

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
        self._tensor_names = _tensor_names(root)
        self._known: dict[int, tuple[Any, Expression | fx.Node]] = {}
        self._differentiable: set[int] = set()
        self._owners: list[str] = [""]
        self.inside = False
        self._original_call = nn.Module.__call__

    # -- values -> graph ---------------------------------------------------------------------

    def placeholder(self, name: str, value: Any) -> None:
        """Declare an input of the graph."""
        node = self.graph.placeholder(name)
        node.meta["owner"] = ""
        self._learn(value, node)

    def output(self, value: Any) -> None:
        """End the graph with `value`, nested as the model returned it."""
        self.graph.output(self.argument(value))

    def argument(self, value: Any) -> Any:
        """`value` as fx writes it: tensors and tracked numbers become nodes."""
        if isinstance(value, torch.Tensor):
            return self._tensor_node(value)
        if isinstance(value, Tracked):
            return value.expression.node
        if isinstance(value, torch.device) and id(value) in self._known:
            return self._known_node(value)
        if isinstance(value, slice):
            return slice(*(self.argument(v) for v in (value.start, value.stop, value.step)))
        if isinstance(value, Mapping):
            return {key: self.argument(v) for key, v in value.items()}
        if isinstance(value, list):
            return [self.argument(v) for v in value]
        if isinstance(value, tuple):
            return tuple(self.argument(v) for v in value)
        if isinstance(value, _PLAIN):
            return float(value) if isinstance(value, float) else value  # numpy's are floats too
        raise TraceError(
            f"{user_frame()}: a value of type '{type(value).__name__}' reaches the graph. "
            "Only tensors, numbers, strings and containers of them can be recorded."
        )

    def _known_node(self, value: Any) -> fx.Node:
        _, found = self._known[id(value)]
        return found if isinstance(found, fx.Node) else found.node

    def _tensor_node(self, tensor: torch.Tensor) -> fx.Node:
        if id(tensor) in self._known:
            return self._known_node(tensor)
        name = self._tensor_names.get(id(tensor))
        if name is None:
            name = self._constant_name(tensor)
        self.attributes[name] = tensor
        node = self.graph.create_node("get_attr", name)
        node.meta["owner"] = name.rpartition(".")[0]
        self._known[id(tensor)] = (tensor, node)
        return node

    def _constant_name(self, tensor: torch.Tensor) -> str:
        if isinstance(tensor, FakeTensor):
            raise NeedsRealValuesError(f"a tensor made out of sight at {user_frame()}")
        count = sum(name.startswith("_tensor_constant") for name in self.attributes)
        return f"_tensor_constant{count}"

    # -- graph -> values ---------------------------------------------------------------------

    def _learn(self, value: Any, source: fx.Node | Expression, detached: bool = False) -> None:
        """Remember where every tensor inside `value` comes from."""
        if isinstance(value, torch.Tensor | torch.device):
            known = Expression(self._write, "detach", source) if detached else source
            self._known[id(value)] = (value, known)  # holding it keeps its id from being reused
        elif isinstance(value, Mapping | tuple | list):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, item in items:
                part = Expression(self._write, operator.getitem, source, key)
                self._learn(item, part, detached)

    def _write(self, function: Callable[..., Any] | str, args: tuple[Any, ...]) -> fx.Node:
        """Write one call of a function, or of the method so named, on expressions and values."""
        op = "call_method" if isinstance(function, str) else "call_function"
        plain = tuple(a.node if isinstance(a, Expression) else a for a in args)
        nodes = tuple(a if isinstance(a, fx.Node) else self.argument(a) for a in plain)
        return self._create(op, function, nodes, {})

    def _create(self, op: str, target: Any, args: Any, kwargs: Any) -> fx.Node:
        node = self.graph.create_node(op, target, args, kwargs)
        node.meta["owner"] = self._owners[-1]
        return node

    def _tracked_size(self, value: Any, expression: Expression) -> Any:
        """Sizes with their expressions: an int, or a torch.Size of them."""
        if isinstance(value, tuple):
            items = (
                track(v, Expression(self._write, operator.getitem, expression, i))
                for i, v in enumerate(value)
            )
            return torch.Size(items) if isinstance(value, torch.Size) else tuple(items)
        return track(value, expression)

    # -- torch functions ---------------------------------------------------------------------

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a torch function that the model called, and record it."""
        name = getattr(function, "__name__", "")
        if name in ("__get__", "__set__"):
            return self._attribute(function, args)
        if name in _VALUE_READS and _holds_tensor(args):
            return self._value_read(function, name, args, kwargs)
        if name in _NUMBER_READS and _holds_tensor(args):
            return self._number_read(function, args)
        result = self._run(function, name, args, kwargs)
        if name in _SIZE_METHODS:
            return self._size(name, args, kwargs, result)
        if not _holds_tensor(result) and name != "__setitem__":
            return result
        result = _fresh(result, (args, kwargs)) if not _works_in_place(name, kwargs) else result
        self._record(function, name, args, kwargs, result)
        return result

    def _run(self, function: Any, name: str, args: Any, kwargs: Any) -> Any:
        """The result; on fake tensors, one like that of an equal call before."""
        if self.results is None or _works_in_place(name, kwargs) or name == "__setitem__":
            return function(*args, **kwargs)
        key = (function, key_of(args), key_of(kwargs))
        return self.results.of(key, lambda: function(*args, **kwargs))

    def _record(self, function: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        op, target, args = _fx_target(function, name, args, kwargs)
        nodes = tuple(self.argument(a) for a in args)
        named = {key: self.argument(value) for key, value in kwargs.items()}
        node = self._create(op, target, nodes, named)
        self._learn(result, node, detached=self._stops_gradient((args, kwargs)))
        self._mark(result, (args, kwargs))

    def _stops_gradient(self, inputs: Any) -> bool:
        """Whether the model switched gradients off for an operation that would have one."""
        if torch.is_grad_enabled():
            return False
        return any(self._has_gradient(t) for t in _tensors(inputs))

    def _attribute(self, function: Any, args: tuple[Any, ...]) -> Any:
        name = function.__self__.__name__
        value = function(*args)
        tensor = args[0]
        expression = Expression(self._write, getattr, tensor, name)
        if function.__name__ == "__set__":
            return value
        if name in _SIZE_GETTERS:
            return self._tracked_size(value, expression)
        if name == "device":
            return self._see_device(tensor, value)
        if name in _TENSOR_GETTERS and isinstance(value, torch.Tensor):
            value = _fresh(value, args)
            self._learn(value, expression)
        return value

    def _size(self, name: str, args: Any, kwargs: Any, result: Any) -> Any:
        method, rest = ("size", (0,)) if name == "__len__" else (name, args[1:])
        expression = Expression(self._write, method, args[0], *rest, *kwargs.values())
        return self._tracked_size(result, expression)

    def _see_device(self, tensor: torch.Tensor, value: torch.device) -> torch.device:
        """A device object of its own, known as the device of `tensor`."""
        own = torch.device(value)
        self._known[id(own)] = (own, Expression(self._write, getattr, tensor, "device"))
        return own

    def _number_read(self, function: Any, args: tuple[Any, ...]) -> Any:
        tensor = next(a for a in args if isinstance(a, torch.Tensor))
        if isinstance(tensor, FakeTensor) and tensor.constant is None:
            raise NeedsRealValuesError(f"a number read from a tensor at {user_frame()}")
        expression = Expression(self._write, "item", tensor)
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
        """Whether this is `rand() < p`, as in layer drop; taken to be false in a trace."""
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

    # -- modules -----------------------------------------------------------------------------

    def call_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a module the model called; record it whole where it is a leaf."""
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
        nodes = tuple(self.argument(a) for a in args)
        named = {key: self.argument(value) for key, value in kwargs.items()}
        self.attributes[name] = module
        node = self._create("call_module", name, nodes, named)
        with self.not_recording(), torch._C.DisableTorchFunction():
            result = self._run_leaf(module, args, kwargs)
        if not getattr(module, "inplace", False):
            result = _fresh(result, (args, kwargs))
        self._learn(result, node)
        self._mark(result, (args, kwargs, list(module.parameters())))
        return result

    def _run_leaf(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        kind = None if self.results is None else module_key(module)
        if self.results is None or kind is None or getattr(module, "inplace", False):
            return self._original_call(module, *args, **kwargs)
        key = (kind, key_of(args), key_of(kwargs))
        return self.results.of(key, lambda: self._original_call(module, *args, **kwargs))

    def _mark(self, result: Any, inputs: Any) -> None:
        """Remember of a result that a gradient could flow through it."""
        if torch.is_grad_enabled() and any(self._has_gradient(t) for t in _tensors(inputs)):
            self._differentiable.update(id(t) for t in _tensors(result))

    def _has_gradient(self, tensor: torch.Tensor) -> bool:
        return tensor.requires_grad or id(tensor) in self._differentiable

    def _adopt(self, module: nn.Module) -> str:
        """A name for a module made inside forward, such as a loss: `crossentropyloss_0`."""
        kind = type(module).__name__.lower()
        prefix = f"{self._owners[-1]}." if self._owners[-1] else ""
        number = 0
        while f"{prefix}{kind}_{number}" in self.attributes:
            number += 1
        self.module_names[module] = f"{prefix}{kind}_{number}"
        return self.module_names[module]

    def call_autograd_function(self, cls: Any, original: Any, args: Any, kwargs: Any) -> Any:
        """Record a custom autograd function as one node."""
        if self.inside:
            return original(*args, **kwargs)
        with self.not_recording(), torch._C.DisableTorchFunction():
            result = original(*args, **kwargs)
        result = _fresh(result, (args, kwargs))
        nodes = tuple(self.argument(a) for a in args)
        self._learn(result, self._create("call_function", cls.apply, nodes, kwargs))
        return result

    # -- the run -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def not_recording(self) -> Iterator[None]:
        """Run what follows as it is, without a trace."""
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """While this is open, what the model does is written to the graph."""
        recorder = self
        apply = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

        def call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return recorder.call_module(module, args, kwargs)

        def call_autograd(cls: Any, *args: Any, **kwargs: Any) -> Any:
            original = functools.partial(apply, cls)
            return recorder.call_autograd_function(cls, original, args, kwargs)

        def see_device(tensor: torch.Tensor, device: torch.device) -> torch.device:
            return device if recorder.inside else recorder._see_device(tensor, device)

        with (
            patched(nn.Module, "__call__", call_module),
            patched(torch.autograd.Function, "apply", classmethod(call_autograd)),
            devices_seen_by(see_device),
            _RecordingMode(self),
        ):
            yield


class _RecordingMode(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.recorder.inside:
            return func(*args, **(kwargs or {}))
        with self.recorder.not_recording():
            return self.recorder.call(func, args, kwargs or {})


def _tensor_names(root: nn.Module) -> dict[int, str]:
    named = [*root.named_parameters(), *root.named_buffers()]
    return {id(tensor): name for name, tensor in reversed(named)}


def _fx_target(
    function: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, Any, tuple[Any, ...]]:
    """How fx names a torch function: op, target and arguments in fx's order."""
    name = _DUNDERS.get(function, name)
    is_method = getattr(torch.Tensor, name, None) == function
    if is_method and name in _OPERATORS:
        return "call_function", _OPERATORS[name], args
    if is_method and name in _METHOD_OPERATORS and len(args) == 2 and not kwargs:
        return "call_function", _METHOD_OPERATORS[name], args
    if is_method and name in _SWAPPED:
        return "call_function", _SWAPPED[name], (args[1], args[0], *args[2:])
    if is_method and isinstance(args[0], torch.Tensor):
        return "call_method", name, args
    return "call_function", function, args


def _works_in_place(name: str, kwargs: Mapping[str, Any]) -> bool:
    return (
        _names_mutation(name)
        or name in _INPLACE_OPERATORS
        or kwargs.get("inplace") is True
        or kwargs.get("out") is not None
    )


def _fresh(result: Any, inputs: Any) -> Any:
    """`result` with any tensor that is one of the inputs given an identity of its own."""
    given = {id(t) for t in _tensors(inputs)}
    if not any(id(t) in given for t in _tensors(result)):
        return result

    def renew(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.ops.aten.alias(value) if id(value) in given else value
        if type(value) in (tuple, list):
            return type(value)(renew(v) for v in value)
        return value

    with torch._C.DisableTorchFunction():
        return renew(result)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _holds_tensor(value: Any) -> bool:
    return next(_tensors(value), None) is not None
