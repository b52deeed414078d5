"""Forward evaluation: sort the nodes, then compute them one by one.

A node is computed after all nodes it reads. `topological_sort` returns such an order; `evaluate`
follows it with one numpy function per operation, from the table `KERNELS`. Arithmetic follows IEEE
754 without warnings: log(0) is -inf.

    >>> g = Graph()
    >>> x, y = g.add_input("x"), g.add_input("y")
    >>> z = g.add_op("mul", [x + y, y], name="z")
    >>> float(evaluate(g, {"x": 2.0, "y": 3.0})["z"])
    15.0
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from graph.errors import CycleError, InputError
from graph.ir import Array, Graph, Node, Op, Step


def topological_sort(graph: Graph) -> list[Node]:
    """Return the nodes, each after those it reads (Kahn's algorithm); raise if there is a cycle.

    The order is otherwise that in which nodes were added.
    """
    users = graph.users()
    waiting = {node.name: len(node.inputs) for node in graph}
    ready = deque(node.name for node in graph if not node.inputs)
    order: list[Node] = []
    while ready:
        name = ready.popleft()
        order.append(graph.nodes[name])
        for user in users[name]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    if len(order) < len(graph):
        raise CycleError(f"the graph has a cycle: {' -> '.join(_find_cycle(graph, waiting))}.")
    return order


def _find_cycle(graph: Graph, waiting: Mapping[str, int]) -> list[str]:
    """Follow unfinished inputs backwards until a node repeats."""
    name = next(name for name, count in waiting.items() if count)
    path: list[str] = []
    while name not in path:
        path.append(name)
        name = next(i for i in graph.nodes[name].inputs if waiting[i])
    cycle = path[path.index(name) :]
    return [name, *reversed(cycle[1:]), name]


def ancestors(graph: Graph, outputs: Iterable[Node | str]) -> set[str]:
    """Return the names of `outputs` and of all nodes that they depend on."""
    stack = [graph.node(output).name for output in outputs]
    names = set(stack)
    while stack:
        for name in graph.nodes[stack.pop()].inputs:
            if name not in names:
                names.add(name)
                stack.append(name)
    return names


def evaluate(
    graph: Graph, inputs: Mapping[str, Any], outputs: Iterable[Node | str] | None = None
) -> dict[str, Array]:
    """Return the value of every node by name; with `outputs`, compute only those."""
    names = [*graph.nodes, *graph.aliases]
    if outputs is not None:
        names = [output if isinstance(output, str) else output.name for output in outputs]
    needed = graph.nodes.keys() if outputs is None else ancestors(graph, names)
    values = check_inputs([node for node in graph.inputs() if node.name in needed], inputs)
    with np.errstate(all="ignore"):
        for node in topological_sort(graph):
            if node.name not in needed or node.op is Op.INPUT:
                continue
            if node.op is Op.CONST:
                assert node.value is not None, f"constant '{node.name}' has no value"
                values[node.name] = node.value
            else:
                operands = [values[name] for name in node.inputs]
                values[node.name] = KERNELS[node.op](*operands, **node.attributes)
    return {name: np.asarray(values[graph.node(name).name]) for name in names}


def check_inputs(nodes: Sequence[Node], inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Return the values of `nodes` as arrays of the declared shape and dtype.

    Values for other names are ignored: a pass may have removed an input.
    """
    return {node.name: _check_input(node, inputs) for node in nodes}


def _check_input(node: Node, inputs: Mapping[str, Any]) -> Array:
    if node.name not in inputs:
        names = ", ".join(f"'{name}'" for name in inputs) or "nothing"
        raise InputError(f"input '{node.name}' is missing; it needs a {node.type}. Given: {names}.")
    value = inputs[node.name]
    if not isinstance(value, np.ndarray | np.generic):  # Python numbers take the declared dtype
        value = np.asarray(value, dtype=node.dtype)
    if value.shape != node.shape or value.dtype != node.dtype:
        got = f"{value.dtype}{list(value.shape)}"
        raise InputError(f"input '{node.name}' needs a {node.type}, got a {got}.")
    return np.asarray(value)


# Kernels that numpy does not have. Elementwise ones have an argument `out`, as ufuncs do.


def _sigmoid(x: Array, out: Array | None = None) -> Array:
    out = np.empty_like(x) if out is None else out
    np.exp(np.negative(x, out), out)
    return np.divide(1.0, np.add(out, 1.0, out), out)


def _step(x: Array, out: Array | None = None) -> Array:
    return np.greater(x, 0, out=np.empty_like(x) if out is None else out)


def _equal(a: Array, b: Array, out: Array | None = None) -> Array:
    if out is None:
        out = np.empty(np.broadcast_shapes(np.shape(a), np.shape(b)), np.result_type(a))
    return np.equal(a, b, out=out)


def _sum(x: Array, axis: tuple[int, ...], keepdims: bool = False) -> Array:
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)  # numpy would widen int32


def _softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _log_softmax(x: Array, axis: int) -> Array:
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def _cross_entropy(logits: Array, target: Array) -> Array:
    return -(target * _log_softmax(logits, -1)).sum(-1).mean()


def _one_hot(labels: Array, classes: int, dtype: str) -> Array:
    if labels.min() < 0 or labels.max() >= classes:
        bad = labels[(labels < 0) | (labels >= classes)].flat[0]
        raise InputError(f"one_hot: class numbers lie in 0 to {classes - 1}, got {bad}.")
    return np.take(np.eye(classes, dtype=dtype), labels, axis=0)


def _fused(*inputs: Array, steps: Sequence[Step]) -> Array:
    values = list(inputs)
    for step in steps:
        values.append(KERNELS[step.op](*(values[i] for i in step.operands)))
    return values[-1]


# One row per operation: a function of the input arrays and, as keywords, the attributes.
KERNELS: Mapping[Op, Callable[..., Array]] = {
    Op.ADD: np.add,
    Op.SUB: np.subtract,
    Op.MUL: np.multiply,
    Op.DIV: np.divide,
    Op.NEG: np.negative,
    Op.POW: np.power,
    Op.EXP: np.exp,
    Op.LOG: np.log,
    Op.SQRT: np.sqrt,
    Op.TANH: np.tanh,
    Op.SIGMOID: _sigmoid,
    Op.RELU: lambda x, out=None: np.maximum(x, 0, out=out),
    Op.STEP: _step,
    Op.EQUAL: _equal,
    Op.MATMUL: np.matmul,
    Op.TRANSPOSE: np.transpose,
    Op.RESHAPE: np.reshape,
    Op.BROADCAST: np.broadcast_to,
    Op.SUM: _sum,
    Op.MEAN: np.mean,
    Op.MAX: np.max,
    Op.SOFTMAX: _softmax,
    Op.LOG_SOFTMAX: _log_softmax,
    Op.CROSS_ENTROPY: _cross_entropy,
    Op.ONE_HOT: _one_hot,
    Op.CAST: lambda x, dtype: np.asarray(x).astype(dtype),
    Op.FUSED: _fused,
}
