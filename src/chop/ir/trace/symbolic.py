"""Sizes inside a graph as expressions in the sizes of its inputs.

The recorded graph runs on tensors whose sizes are torch's symbols. Only the nodes that a size
depends on run, and equal layers run once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from chop.ir.guards import Path, Tree, path_text
from chop.ir.trace.result_cache import is_hashable, module_key
from chop.ir.trace.size_rules import sizes_of
from chop.ir.trace.torch_names import works_in_place
from chop.ir.trace.tracked import Expression, Tracked, plain

_SYMBOLIC = {min: torch.sym_min, max: torch.sym_max}


class NotFollowedError(Exception):
    """Size that cannot be written as an expression in the sizes of the inputs."""


class SymbolicSizes:
    """Numbers of a graph as sympy expressions; `sizes` maps a symbol to its input and dimension.

    `hints` are the sizes that torch assumes where it must decide. Sizes in `pinned` are constants:
    an expression in a size that never changes can grow with every reshape.
    """

    def __init__(
        self,
        attributes: Mapping[str, Any],
        inputs: Mapping[str, Any],
        hints: Mapping[tuple[Path, int], int],
        node_of: Callable[[Tensor], fx.Node],
        pinned: Collection[tuple[Path, int]] = (),
    ) -> None:
        self.attributes = attributes
        self.pinned = pinned
        self.node_of = node_of
        self.environment = ShapeEnv(specialize_zero_one=False, duck_shape=False)
        self.world = FakeTensorMode(
            shape_env=self.environment, static_shapes=True, allow_non_fake_inputs=True
        )
        # Equal calls run once here, so that torch's cache of symbolic results only costs time.
        self.world.cache_enabled = False
        self.sizes: dict[sympy.Symbol, tuple[Path, int]] = {}
        self._own: dict[Any, sympy.Symbol] = {}
        self._values: dict[fx.Node, Any] = {}
        self._alike: dict[Any, Any] = {}
        self._numbers: dict[int, Any] = {}
        self.inputs = {name: self._symbolic(v, (name,), hints) for name, v in inputs.items()}

    def _symbolic(self, value: Any, path: Path, hints: Mapping[tuple[Path, int], int]) -> Any:
        if isinstance(value, Mapping):
            return {k: self._symbolic(v, (*path, k), hints) for k, v in value.items()}
        if isinstance(value, tuple | list):
            items = (self._symbolic(v, (*path, i), hints) for i, v in enumerate(value))
            return type(value)(items)
        if not isinstance(value, Tensor):
            return value
        shape = [hints[path, dim] for dim in range(value.dim())]
        example = torch.empty(shape, dtype=value.dtype, device=value.device)
        kinds = [
            DimDynamic.STATIC if (path, dim) in self.pinned else DimDynamic.DYNAMIC
            for dim in range(value.dim())
        ]
        symbolic = self.world.from_tensor(
            example,
            static_shapes=False,
            symbolic_context=StatelessSymbolicContext(kinds),
            source=ConstantSource(path_text(path)),
        )
        for dim, size in enumerate(symbolic.shape):
            name = f"{path_text(path)}.size({dim})"
            own = sympy.Symbol(name, integer=True, nonnegative=True)
            if isinstance(size, torch.SymInt):
                self._own[size.node.expr] = own
            self.sizes[own] = (path, dim)
        return symbolic

    def _value(self, node: fx.Node) -> Any:
        for each in _ancestry(node, self._values):
            try:
                self._values[each] = self._run(each)
            except Exception as error:  # then this node and those that use it are unknown
                self._values[each] = NotFollowedError(f"node '{each.name}': {error}")
        return self._computed(node)

    def _computed(self, node: fx.Node) -> Any:
        value = self._values[node]
        if isinstance(value, NotFollowedError):
            raise value
        return value

    def _run(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            default = node.args[0] if node.args else None
            return self.inputs.get(str(node.target), default)
        if node.op == "get_attr":
            return self.attributes[str(node.target)]
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), self._computed)
        function: Any = node.target
        if node.op == "call_method":
            # without strides, which a view needs and rules of sizes do not compute
            is_view = node.target == "view" and not any(isinstance(a, torch.dtype) for a in args)
            name = "reshape" if is_view else str(node.target)
            function = functools.partial(_call_method, name)
        elif node.op == "call_module":
            function = self.attributes[str(node.target)]
        key = _key(node, function, args, kwargs)
        if key is not None and key in self._alike:
            return self._alike[key]
        with self.world, torch.no_grad():
            result = sizes_of(node.op, function, str(node.target), (*args, *kwargs.values()))
            if result is None:
                result = _SYMBOLIC.get(function, function)(*args, **kwargs)
        if key is not None:
            self._alike[key] = result
        return result

    def number(self, value: Any) -> sympy.Expr:
        """Return a tracked or plain number as an expression in `sizes`."""
        number = self._number(value)
        if not isinstance(number, torch.SymInt | torch.SymFloat):
            return sympy.sympify(number)
        expression = self.environment.replace(number.node.expr).xreplace(self._own)
        if not expression.free_symbols <= set(self.sizes):
            raise NotFollowedError("it depends on values")
        return expression

    def _number(self, value: Any) -> Any:
        if isinstance(value, Tracked):
            return self._number(value.expression)
        if isinstance(value, Tensor):
            return self._value(self.node_of(value))
        if isinstance(value, fx.Node):
            return self._value(value)
        if not isinstance(value, Expression):
            return plain(value)
        if id(value) not in self._numbers:
            args = [self._number(a) for a in value.args]
            function = value.function
            with self.world:
                if isinstance(function, str):
                    self._numbers[id(value)] = _call_method(function, *args)
                else:
                    self._numbers[id(value)] = _SYMBOLIC.get(function, function)(*args)
        return self._numbers[id(value)]

    def equal_sizes(self) -> list[tuple[sympy.Symbol, sympy.Symbol]]:
        """Return sizes of inputs that meet in an operation and were assumed equal."""
        pairs = [(self._own.get(a), self._own.get(b)) for a, b in self._replacements()]
        return [(a, b) for a, b in pairs if a is not None and b is not None]

    def fixed_sizes(self) -> list[tuple[Path, int, int]]:
        """Return sizes of inputs for which torch accepts no symbol: input, dimension, value."""
        pairs = [(self._own.get(a), b) for a, b in self._replacements()]
        return [(*self.sizes[a], int(b)) for a, b in pairs if a is not None and b.is_number]

    def _replacements(self) -> Iterable[tuple[Any, Any]]:
        symbols = self.environment.replacements
        return [(symbol, self.environment.replace(symbol)) for symbol in symbols]


def _call_method(name: str, receiver: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(receiver, name)(*args, **kwargs)


def _ancestry(node: fx.Node, computed: Mapping[fx.Node, Any]) -> list[fx.Node]:
    """Return `node` and the nodes it needs that are not in `computed`, operands first."""
    order: list[fx.Node] = []
    visited: set[fx.Node] = set()
    waiting = [(node, False)]
    while waiting:
        each, is_ready = waiting.pop()
        if is_ready:
            order.append(each)
        elif each not in computed and each not in visited:
            visited.add(each)
            waiting.append((each, True))
            waiting.extend((n, False) for n in each.all_input_nodes)
    return order


def _key(node: fx.Node, function: Any, args: Any, kwargs: Any) -> Any:
    """Return a key that is equal for calls with equal results, or None if that is unknown."""
    name = getattr(function, "__name__", str(node.target))
    if works_in_place(name, kwargs):
        return None
    what = node.target
    if isinstance(function, nn.Module):
        what = module_key(function)
        if what is None or getattr(function, "inplace", False):
            return None
    key = (node.op, what, _argument_key(args), _argument_key(kwargs))
    return key if is_hashable(key) else None


def _argument_key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (*map(_argument_key, (*value.shape, *value.stride())), value.dtype, value.device)
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return value.node.expr
    if isinstance(value, tuple | list):
        return (type(value), *map(_argument_key, value))
    if isinstance(value, dict):
        return tuple((k, _argument_key(v)) for k, v in value.items())
    if isinstance(value, slice):
        return (slice, *map(_argument_key, (value.start, value.stop, value.step)))
    return (type(value), value)


_OPERATIONS = {
    name: operation
    for operation, names in {
        "+": "Add",
        "*": "Mul",
        "//": "FloorDiv CleanDiv",
        "%": "Mod PythonMod",
        "**": "Pow PowByNatural FloatPow",
        "/": "IntTrueDiv FloatTrueDiv",
        "min": "Min",
        "max": "Max",
        "abs": "Abs",
        "ceil": "CeilToInt ceiling",
        "floor": "FloorToInt floor",
        "trunc": "TruncToInt",
        "round": "RoundToInt",
        "float": "ToFloat",
    }.items()
    for name in names.split()
}
"""Function of sympy or of torch's extension -> operation of a guard."""


def to_tree(expression: Any, sizes: Mapping[sympy.Symbol, tuple[Path, int]]) -> Tree:
    """Return a sympy expression as the plain data of a guard."""
    if isinstance(expression, sympy.Symbol):
        return ("size", *sizes[expression])
    if expression.is_Integer:
        return int(expression)
    if expression.is_Rational:
        return ("/", int(expression.p), int(expression.q))
    if expression.is_Float:
        return float(expression)
    name = type(expression).__name__
    if name not in _OPERATIONS:
        raise NotFollowedError(f"'{name}' is not an operation of guards")
    return (_OPERATIONS[name], *(to_tree(part, sizes) for part in expression.args))
