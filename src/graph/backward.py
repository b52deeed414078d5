"""Reverse-mode differentiation: from the graph of a number to the graph of its gradient.

The nodes are visited backwards from the loss. Each operation passes the derivative of the loss to
its inputs by one row of `RULES` (the chain rule); a node with several readers adds the parts. The
rules build *nodes*, not numbers, so the gradient is an ordinary graph: it can be printed,
optimised, evaluated, and differentiated again.

    >>> from graph.evaluator import evaluate
    >>> g = Graph()
    >>> x = g.add_input("x")
    >>> first, slope = backward(g, x * x * x)
    >>> second, bend = backward(first, slope["x"])
    >>> values = evaluate(second, {"x": 2.0})
    >>> float(values[slope["x"].name]), float(values[bend["x"].name])
    (12.0, 12.0)
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from graph.errors import GradientError
from graph.evaluator import ancestors, topological_sort
from graph.ir import Graph, Node, Op, Shape


def backward(
    graph: Graph, loss_node: Node | str, wrt: Iterable[Node | str] | None = None
) -> tuple[Graph, dict[str, Node]]:
    """Return `graph` with gradient nodes, and the gradient of the loss for each name in `wrt`.

    `wrt` defaults to every floating input. A node that the loss does not depend on has gradient 0.
    """
    graph = graph.copy()
    loss = graph.node(loss_node)
    if loss.shape != () or loss.dtype.kind != "f":
        text = f"the loss must be one floating number, got {loss.type}; reduce it with sum or mean"
        raise GradientError(f"node '{loss.name}' ({loss.op.value}): {text}.")
    sources = _sources(graph, wrt)
    order = topological_sort(graph)
    active = _active(graph, order, loss, {node.name for node in sources.values()})
    received: dict[str, list[Node]] = {name: [] for name in active}
    received[loss.name] = [graph.add_const(1.0, dtype=loss.dtype)]
    totals: dict[str, Node] = {}
    for node in reversed(order):
        if parts := received.get(node.name):
            totals[node.name] = total = functools.reduce(operator.add, parts)
            for name, part in _pass_on(node, total, active):
                received[name].append(part)
    for x in sources.values():
        if x.name not in totals:
            totals[x.name] = graph.add_const(np.zeros(x.shape, x.dtype))
    return graph, {name: totals[x.name] for name, x in sources.items()}


def _sources(graph: Graph, wrt: Iterable[Node | str] | None) -> dict[str, Node]:
    """Return the nodes to differentiate by, under the names in `wrt`."""
    if wrt is None:
        return {node.name: node for node in graph.inputs() if node.dtype.kind == "f"}
    sources = {node if isinstance(node, str) else node.name: graph.node(node) for node in wrt}
    for name, node in sources.items():
        if node.dtype.kind != "f":
            text = f"only floating nodes have a gradient, this is {node.type}"
            raise GradientError(f"node '{name}' ({node.op.value}): {text}.")
    return sources


def _active(graph: Graph, order: Sequence[Node], loss: Node, sources: set[str]) -> set[str]:
    """Return the nodes on a path from a source to the loss: only they have a gradient."""
    moved = set(sources)
    for node in order:
        passes = node.dtype.kind == "f" and RULES.get(node.op, True)  # fused: raises later
        if passes and not moved.isdisjoint(node.inputs):
            moved.add(node.name)
    return moved & ancestors(graph, [loss])


def _pass_on(node: Node, grad: Node, active: set[str]) -> list[tuple[str, Node]]:
    """Return the gradient part of each active input of `node`, whose gradient is `grad`."""
    if node.op is Op.FUSED:
        text = "fused nodes have no gradient; call backward first and fuse afterwards"
        raise GradientError(f"node '{node.name}' (fused): {text}.")
    inputs = [node.graph.nodes[name] for name in node.inputs]
    return [
        (x.name, _unbroadcast(rule(grad, node, *inputs), x))
        for x, rule in zip(inputs, RULES[node.op], strict=True)
        if x.name in active
    ]


def _unbroadcast(grad: Node, x: Node) -> Node:
    """Sum `grad` over the axes along which `x` was repeated."""
    if grad.shape == x.shape:
        return grad
    lead = grad.ndim - x.ndim
    repeated = [lead + i for i, size in enumerate(x.shape) if size != grad.shape[lead + i]]
    return _reshape(grad.apply(Op.SUM, axis=(*range(lead), *repeated)), x.shape)


def _reshape(x: Node, shape: Shape) -> Node:
    return x if x.shape == shape else x.apply(Op.RESHAPE, shape=shape)


def _keep(y: Node, reduced: Node, x: Node) -> Node:
    """Return `y`, shaped like the reduction `reduced` of `x`, with reduced axes of size one."""
    axis = reduced.attributes["axis"]
    return _reshape(y, tuple(1 if i in axis else size for i, size in enumerate(x.shape)))


def _spread(grad: Node, y: Node, x: Node) -> Node:
    """Repeat `grad` of a sum for every element that was summed."""
    return _keep(grad, y, x).apply(Op.BROADCAST, shape=x.shape)


def _flip(x: Node) -> Node:
    """Exchange the last two axes of `x`."""
    *lead, rows, columns = range(x.ndim)
    return x.apply(Op.TRANSPOSE, axes=(*lead, columns, rows))


def _power_base(grad: Node, y: Node, a: Node, b: Node) -> Node:
    """Return grad * b * a**(b-1); a constant b = 0 has exponent 1, so that the slope at 0 is 0."""
    if b.op is not Op.CONST or b.value is None:
        return grad * (b * a ** (b - 1.0))
    lower = b.graph.add_const(np.where(b.value == 0, 1, b.value - 1).astype(b.dtype))
    return grad * (b * a**lower)


def _winners(grad: Node, y: Node, x: Node) -> Node:
    """Divide `grad` of a max equally between the largest elements."""
    mask = x.apply(Op.EQUAL, _keep(y, y, x))
    count = mask.apply(Op.SUM, axis=y.attributes["axis"], keepdims=True)
    return mask * (_keep(grad, y, x) / count)


def _softmax(grad: Node, y: Node, x: Node) -> Node:
    shared = (grad * y).apply(Op.SUM, axis=y.attributes["axis"], keepdims=True)
    return y * (grad - shared)


def _log_softmax(grad: Node, y: Node, x: Node) -> Node:
    shared = grad.apply(Op.SUM, axis=y.attributes["axis"], keepdims=True)
    return grad - y.apply(Op.EXP) * shared


def _logits(grad: Node, y: Node, logits: Node, target: Node) -> Node:
    """Return (softmax - target) / rows, for targets with any sum."""
    chance = logits.apply(Op.LOG_SOFTMAX).apply(Op.EXP)
    total = target.apply(Op.SUM, axis=-1, keepdims=True)
    return (chance * total - target) * (grad / (logits.size / logits.shape[-1]))


def _target(grad: Node, y: Node, logits: Node, target: Node) -> Node:
    return logits.apply(Op.LOG_SOFTMAX) * (grad / -(logits.size / logits.shape[-1]))


def _transpose_back(grad: Node, y: Node, x: Node) -> Node:
    axes = tuple(int(i) for i in np.argsort(y.attributes["axes"]))
    return grad.apply(Op.TRANSPOSE, axes=axes)


# For y = op(a, b), one function (grad, y, a, b) -> node per input: the part of its gradient. An
# empty row stops the gradient: step, equal and one_hot are flat or undefined.
RULES: Mapping[Op, tuple[Callable[..., Node], ...]] = {
    Op.INPUT: (),
    Op.CONST: (),
    Op.ADD: (lambda g, y, a, b: g, lambda g, y, a, b: g),
    Op.SUB: (lambda g, y, a, b: g, lambda g, y, a, b: -g),
    Op.MUL: (lambda g, y, a, b: g * b, lambda g, y, a, b: g * a),
    Op.DIV: (lambda g, y, a, b: g / b, lambda g, y, a, b: -(g * y / b)),
    Op.NEG: (lambda g, y, a: -g,),
    Op.POW: (_power_base, lambda g, y, a, b: g * (y * a.apply(Op.LOG))),
    Op.EXP: (lambda g, y, a: g * y,),
    Op.LOG: (lambda g, y, a: g / a,),
    Op.SQRT: (lambda g, y, a: g * 0.5 / y,),
    Op.TANH: (lambda g, y, a: g * (1.0 - y * y),),
    Op.SIGMOID: (lambda g, y, a: g * (y * (1.0 - y)),),
    Op.RELU: (lambda g, y, a: g * y.apply(Op.STEP),),  # of y, so that a can be freed
    Op.STEP: (),
    Op.EQUAL: (),
    Op.MATMUL: (lambda g, y, a, b: g @ _flip(b), lambda g, y, a, b: _flip(a) @ g),
    Op.TRANSPOSE: (_transpose_back,),
    Op.RESHAPE: (lambda g, y, a: _reshape(g, a.shape),),
    Op.BROADCAST: (lambda g, y, a: g,),
    Op.SUM: (_spread,),
    Op.MEAN: (lambda g, y, a: _spread(g / (a.size / y.size), y, a),),
    Op.MAX: (_winners,),
    Op.SOFTMAX: (_softmax,),
    Op.LOG_SOFTMAX: (_log_softmax,),
    Op.CROSS_ENTROPY: (_logits, _target),
    Op.ONE_HOT: (),
    Op.CAST: (lambda g, y, a: g.apply(Op.CAST, dtype=a.dtype.name),),
}
