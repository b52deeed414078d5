"""Comparison of this IR with torch.fx on one network, and import from torch.fx.

`from_fx` converts a traced `torch.fx` module to a `Graph`. Only this file imports torch.

    python -m graph.fx_compare
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from graph.errors import ImportFxError, suggest
from graph.evaluator import evaluate
from graph.ir import Array, Graph, Node

BATCH, PIXELS, HIDDEN, CLASSES = 4, 8, 16, 3


class MLP(nn.Module):
    """Two linear layers with a relu between them and a softmax at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(PIXELS, HIDDEN, dtype=torch.float64)
        self.output = nn.Linear(HIDDEN, CLASSES, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the class probabilities of a batch."""
        return F.softmax(self.output(torch.relu(self.hidden(x))), dim=-1)


def build_mlp() -> tuple[Graph, Node]:
    """Build the same network by hand, with the weights as inputs under torch's names."""
    graph = Graph()
    x = graph.add_input("x", (BATCH, PIXELS))
    for name, fan_in, fan_out in (("hidden", PIXELS, HIDDEN), ("output", HIDDEN, CLASSES)):
        weight = graph.add_input(f"{name}.weight", (fan_out, fan_in))
        bias = graph.add_input(f"{name}.bias", (fan_out,))
        x = (x @ weight.apply("transpose")).apply("add", bias, name=name)
        x = x.apply("relu", name="relu") if name == "hidden" else x
    return graph, x.apply("softmax", axis=-1, name="softmax")


@dataclass(frozen=True)
class Imported:
    """A torch.fx graph in this IR, and the values of its parameters, which are inputs."""

    graph: Graph
    parameters: dict[str, Array]
    outputs: tuple[str, ...]


def from_fx(module: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Imported:
    """Convert `module` to a `Graph` for inputs like `example_inputs`.

    Every fx node keeps its name. An operation without a row in `CALLS` or `MODULES` is an error.
    Call `module.eval()` first if it has dropout.
    """
    importer = _Importer(module, example_inputs)
    for node in module.graph.nodes:
        importer.add(node)
    return Imported(importer.graph, importer.parameters, tuple(importer.outputs))


class _Importer:
    def __init__(self, module: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> None:
        self.module = module
        self.examples = list(example_inputs)
        self.graph = Graph(avoid=[node.name for node in module.graph.nodes])
        self.parameters: dict[str, Array] = {}
        self.outputs: list[str] = []
        self.modules: dict[str, nn.Module] = dict(module.named_modules())

    def add(self, node: fx.Node) -> None:
        """Import one fx node, by the method for its kind."""
        getattr(self, f"_{node.op}")(node)

    def _placeholder(self, node: fx.Node) -> None:
        if not self.examples:
            raise ImportFxError(f"node '{node.name}' (placeholder): no example input is left.")
        example, name = self.examples.pop(0), str(node.target)
        self.graph.add_input(name, example.shape, _numpy_dtype(example))
        if node.name != name:  # fx renames `input` to input_1: use the user's name
            self.graph.alias(node.name, name)

    def _get_attr(self, node: fx.Node) -> None:
        parameter = self.parameter(str(node.target))
        if parameter.name != node.name:
            self.graph.alias(node.name, parameter.name)

    def _call_function(self, node: fx.Node) -> None:
        self._call(node, CALLS.get(node.target), getattr(node.target, "__name__", node.target))

    def _call_method(self, node: fx.Node) -> None:
        self._call(node, CALLS.get(node.target), node.target)

    def _call_module(self, node: fx.Node) -> None:
        module = self.modules[str(node.target)]
        rule = MODULES.get(type(module))
        handler = partial(rule, self, module, str(node.target)) if rule else None
        self._call(node, handler, type(module).__name__)

    def _output(self, node: fx.Node) -> None:
        self.outputs += [self.graph.node(n.name).name for n in node.all_input_nodes]

    def _call(self, node: fx.Node, handler: Handler | None, called: object) -> None:
        if handler is None:
            names = {str(getattr(key, "__name__", key)) for key in (*CALLS, *MODULES)}
            text = f"node '{node.name}' ({node.op}): no operation is listed for '{called}'."
            raise ImportFxError(f"{text} {suggest(called, names)}")
        args, kwargs = _map_nodes((node.args, node.kwargs), lambda n: self.graph.node(n.name))
        try:
            inspect.signature(handler).bind(*args, name=node.name, **kwargs)
        except TypeError as error:
            text = f"node '{node.name}' ({node.op}): '{called}' is called in a way that"
            raise ImportFxError(f"{text} is not supported: {error}.") from None
        handler(*args, name=node.name, **kwargs)

    def parameter(self, name: str) -> Node:
        """Return the input node of a parameter or buffer, added at first use."""
        if name not in self.parameters:
            tensor = operator.attrgetter(name)(self.module).detach()
            self.parameters[name] = tensor.cpu().numpy()
            self.graph.add_input(name, tensor.shape, _numpy_dtype(tensor))
        return self.graph.node(name)


def _numpy_dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


Handler = Callable[..., Node]
_map_nodes: Any = fx.map_arg  # its types demand fx nodes as results


def _unary(op: str) -> Handler:
    def handle(x: Node, *, name: str, inplace: bool = False) -> Node:
        return x.apply(op, name=name)

    return handle


def _binary(op: str) -> Handler:
    def handle(a: Node | float, b: Node | float, *, name: str) -> Node:
        if isinstance(a, Node):
            return a.apply(op, b, name=name)
        assert isinstance(b, Node), f"neither {a} nor {b} is a node"
        return b.graph.add_const(a, dtype=b.dtype).apply(op, b, name=name)

    return handle


def _reduction(op: str) -> Handler:
    def handle(x: Node, dim: Any = None, keepdim: bool = False, *, name: str) -> Node:
        return x.apply(op, name=name, axis=dim, keepdims=keepdim)

    return handle


def _along(op: str) -> Handler:
    def handle(x: Node, dim: int, *, name: str, _stacklevel: int = 3, dtype: None = None) -> Node:
        return x.apply(op, name=name, axis=dim)

    return handle


def _swap(x: Node, a: int, b: int, *, name: str) -> Node:
    axes = list(range(x.ndim))
    axes[a], axes[b] = axes[b], axes[a]
    return x.apply("transpose", name=name, axes=tuple(axes))


def _permute(x: Node, *axes: Any, name: str) -> Node:
    return x.apply("transpose", name=name, axes=tuple(np.ravel(axes).tolist()))


def _reshape(x: Node, *shape: Any, name: str) -> Node:
    return x.apply("reshape", name=name, shape=tuple(np.ravel(shape).tolist()))


def _expand(x: Node, *shape: Any, name: str) -> Node:
    target = tuple(np.ravel(shape).tolist())
    own = (1,) * (len(target) - x.ndim) + x.shape
    sizes = tuple(n if size == -1 else size for size, n in zip(target, own, strict=True))
    return x.apply("broadcast", name=name, shape=sizes)


def _flatten(x: Node, start_dim: int = 0, end_dim: int = -1, *, name: str) -> Node:
    start, end = start_dim % x.ndim, end_dim % x.ndim
    shape = (*x.shape[:start], -1, *x.shape[end + 1 :])
    return x.apply("reshape", name=name, shape=shape)


def _linear(x: Node, weight: Node, bias: Node | None = None, *, name: str) -> Node:
    if bias is None:
        return x.apply("matmul", weight.apply("transpose"), name=name)
    return (x @ weight.apply("transpose")).apply("add", bias, name=name)


def _cross_entropy(logits: Node, target: Node, *, name: str, **options: Any) -> Node:
    for key, value in options.items():
        if PLAIN_LOSS.get(key, value) != value:
            text = f"only the plain mean cross-entropy is supported, not {key}={value}"
            raise ImportFxError(f"node '{name}': {text}.")
    if target.dtype.kind == "i":
        classes, dtype = logits.shape[-1], logits.dtype.name
        target = target.apply("one_hot", classes=classes, dtype=dtype)
    return logits.apply("cross_entropy", target, name=name)


PLAIN_LOSS = {"weight": None, "ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}


# Handlers by torch function, operator or method name. To support another, add a row.
_NAMES: Mapping[Handler, tuple[Any, ...]] = {
    _binary("add"): (operator.add, torch.add, "add"),
    _binary("sub"): (operator.sub, torch.sub, "sub"),
    _binary("mul"): (operator.mul, torch.mul, "mul"),
    _binary("div"): (operator.truediv, torch.div, "div"),
    _binary("pow"): (operator.pow, torch.pow, "pow"),
    _binary("matmul"): (operator.matmul, torch.matmul, torch.mm, torch.bmm, "matmul", "mm", "bmm"),
    _unary("neg"): (operator.neg, torch.neg, "neg"),
    _unary("exp"): (torch.exp, "exp"),
    _unary("log"): (torch.log, "log"),
    _unary("sqrt"): (torch.sqrt, "sqrt"),
    _unary("tanh"): (torch.tanh, "tanh"),
    _unary("sigmoid"): (torch.sigmoid, "sigmoid"),
    _unary("relu"): (torch.relu, F.relu, "relu"),
    _reduction("sum"): (torch.sum, "sum"),
    _reduction("mean"): (torch.mean, "mean"),
    _reduction("max"): (torch.amax, "amax"),
    _along("softmax"): (torch.softmax, F.softmax, "softmax"),
    _along("log_softmax"): (torch.log_softmax, F.log_softmax, "log_softmax"),
    _swap: (torch.transpose, "transpose"),
    _permute: (torch.permute, "permute"),
    _reshape: (torch.reshape, "reshape", "view"),
    _expand: (torch.broadcast_to, "broadcast_to", "expand"),
    _flatten: (torch.flatten, "flatten"),
    _linear: (F.linear,),
    _cross_entropy: (F.cross_entropy,),
}
CALLS: Mapping[Any, Handler] = {key: handler for handler, keys in _NAMES.items() for key in keys}


def _linear_module(importer: _Importer, module: Any, path: str, x: Node, *, name: str) -> Node:
    bias = None if module.bias is None else importer.parameter(f"{path}.bias")
    return _linear(x, importer.parameter(f"{path}.weight"), bias, name=name)


def _stateless(op: str) -> Handler:
    def handle(importer: _Importer, module: Any, path: str, x: Node, *, name: str) -> Node:
        return x.apply(op, name=name)

    return handle


def _along_module(op: str) -> Handler:
    def handle(importer: _Importer, module: Any, path: str, x: Node, *, name: str) -> Node:
        return x.apply(op, name=name, axis=-1 if module.dim is None else module.dim)

    return handle


def _flatten_module(importer: _Importer, module: Any, path: str, x: Node, *, name: str) -> Node:
    return _flatten(x, module.start_dim, module.end_dim, name=name)


def _identity(importer: _Importer, module: Any, path: str, x: Node, *, name: str) -> Node:
    if isinstance(module, nn.Dropout) and module.training:
        raise ImportFxError(f"node '{name}' (call_module): dropout is random; call eval() first.")
    importer.graph.alias(name, x.name)
    return x


def _loss_module(
    importer: _Importer, module: Any, path: str, logits: Node, target: Node, *, name: str
) -> Node:
    options = {key: getattr(module, key) for key in PLAIN_LOSS}
    return _cross_entropy(logits, target, name=name, **options)


MODULES: Mapping[type[nn.Module], Handler] = {
    nn.Linear: _linear_module,
    nn.ReLU: _stateless("relu"),
    nn.Tanh: _stateless("tanh"),
    nn.Sigmoid: _stateless("sigmoid"),
    nn.Softmax: _along_module("softmax"),
    nn.LogSoftmax: _along_module("log_softmax"),
    nn.Flatten: _flatten_module,
    nn.Identity: _identity,
    nn.Dropout: _identity,
    nn.CrossEntropyLoss: _loss_module,
}


# Facts about the traced MLP that fx records and this IR does not.
ONLY_IN_FX: Mapping[str, Callable[[fx.GraphModule], object]] = {
    "module hierarchy: which submodule a node runs": lambda m: [
        str(n.target) for n in m.graph.nodes if n.op == "call_module"
    ],
    "the kind of call": lambda m: sorted({n.op for n in m.graph.nodes}),
    "Python arguments as written, by keyword": lambda m: next(
        dict(n.kwargs) for n in m.graph.nodes if n.name == "softmax"
    ),
    "the parameters themselves": lambda m: [name for name, _ in m.named_parameters()],
    "Python code it was turned back into": lambda m: m.code.strip().splitlines()[-1].strip(),
}


def side_by_side(module: fx.GraphModule, graph: Graph) -> str:
    """Return both listings in two columns, nodes of one name in one row."""
    left = {n.name: f"{n.op:<13} {n.name:<8} {_target(n)}" for n in module.graph.nodes}
    right = dict(zip(graph.nodes, str(graph).splitlines(), strict=True))
    shared = [name for name in left if name in right]
    rows: list[tuple[str, str]] = []
    for name in shared:
        extra = list(right)[: list(right).index(name)]
        rows += [("", right.pop(other)) for other in extra]
        rows.append((left.pop(name), right.pop(name)))
    rows += zip_longest(left.values(), right.values(), fillvalue="")
    width = max(len(row[0]) for row in rows)
    head = [("torch.fx", "graph"), ("-" * width, "-" * max(len(row[1]) for row in rows))]
    return "\n".join(f"{a:<{width}} | {b}".rstrip() for a, b in head + rows)


def _target(node: fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target))


def main() -> None:
    """Print both IRs, the facts that only fx has, and that the values agree."""
    torch.manual_seed(0)
    module = fx.symbolic_trace(MLP())
    x = torch.randn(BATCH, PIXELS, dtype=torch.float64)
    graph, output = build_mlp()
    print(side_by_side(module, graph))
    print("\nOnly torch.fx records:")
    for finding, show in ONLY_IN_FX.items():
        print(f"  {finding}: {show(module)}")
    shapes = [n.meta["tensor_meta"] for n in module.graph.nodes if "tensor_meta" in n.meta]
    print(f"Only this IR records, from the start: shapes and dtypes (fx has {len(shapes)} so far).")
    imported = from_fx(module, [x])
    inputs = {**imported.parameters, "x": x.numpy()}
    expected = module(x).detach().numpy()
    for label, g, name in (
        ("by hand", graph, output.name),
        ("imported", imported.graph, imported.outputs[0]),
    ):
        error = np.abs(evaluate(g, inputs, [name])[name] - expected).max()
        print(f"{label:<8}: {len(g)} nodes, agrees with torch to 1e-15: {bool(error <= 1e-15)}")


if __name__ == "__main__":
    main()
