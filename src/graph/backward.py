"""Reverse-mode differentiation: from a graph for a number, a graph for its gradient.

Walk the nodes backwards from the loss, carrying "how much the loss changes per unit of this node".
Each operation passes that on to its inputs by one row of `RULES` (the chain rule), and a node read
several times adds up what it receives. The rules build *nodes*, not numbers, so the gradient is an
ordinary graph: it can be printed, optimised, evaluated, and differentiated again.

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

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from graph.errors import GradientError
from graph.evaluator import ancestors, topological_sort
from graph.ir import Graph, Node, Op, Shape


def backward(
    graph: Graph, loss_node: Node | str, wrt: Iterable[Node | str] | None = None
) -> tuple[Graph, dict[str, Node]]:
    """`graph` with gradient nodes added, and the gradient of the loss for each name in `wrt`.

    `wrt` is every floating input unless given. What the loss does not depend on has gradient zero.
    """
    graph = graph.copy()
    loss = _check_loss(graph.node(loss_node))
    sources = _sources(graph, wrt)
    order = topological_sort(graph)
    active = _active(graph, order, loss, {node.name for node in sources.values()})
    received: dict[str, list[Node]] = {name: [] for name in active}
    received[loss.name] = [graph.add_const(1.0, dtype=loss.dtype)]
    totals: dict[str, Node] = {}
    for node in reversed(order):
        if parts := received.get(node.name):
            totals[node.name] = total = _sum(parts)
            for name, part in _pass_on(node, total, active):
                received[name].append(part)
    return graph, {name: totals.get(x.name) or _zeros(x) for name, x in sources.items()}


def _sources(graph: Graph, wrt: Iterable[Node | str] | None) -> dict[str, Node]:
    """The nodes to differentiate by, under the names they were asked for."""
    if wrt is None:
        return {node.name: node for node in graph.inputs() if node.dtype.kind == "f"}
    asked = {node if isinstance(node, str) else node.name: graph.node(node) for node in wrt}
    for name, node in asked.items():
        if node.dtype.kind != "f":
            text = f"only floating nodes have a gradient, this is {node.type}"
            raise GradientError(f"node '{name}' ({node.op.value}): {text}.")
    return asked


def _check_loss(loss: Node) -> Node:
    if loss.shape != () or loss.dtype.kind != "f":
        text = f"the loss must be one floating number, got {loss.type}; reduce it with sum or mean"
        raise GradientError(f"node '{loss.name}' ({loss.op.value}): {text}.")
    return loss


def _active(graph: Graph, order: Sequence[Node], loss: Node, sources: set[str]) -> set[str]:
    """The nodes on a path from a source to the loss: only they carry a gradient."""
    moved = set(sources)
    for node in order:
        passes = node.dtype.kind == "f" and RULES.get(node.op, True)  # fused: refused later
        if passes and not moved.isdisjoint(node.inputs):
            moved.add(node.name)
    return moved & ancestors(graph, [loss])


def _sum(parts: Sequence[Node]) -> Node:
    total, *rest = parts
    for part in rest:
        total = total + part
    return total


def _zeros(node: Node) -> Node:
    return node.graph.add_const(np.zeros(node.shape, node.dtype))


def _pass_on(node: Node, grad: Node, active: set[str]) -> list[tuple[str, Node]]:
    """What each active input of `node` receives when `node` received `grad`."""
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
    """`grad` summed over the axes along which `x` was repeated."""
    if grad.shape == x.shape:
        return grad
    lead = grad.ndim - x.ndim
    repeated = [lead + i for i, size in enumerate(x.shape) if size != grad.shape[lead + i]]
    return _reshape(grad.apply(Op.SUM, axis=(*range(lead), *repeated)), x.shape)


def _reshape(x: Node, shape: Shape) -> Node:
    return x if x.shape == shape else x.apply(Op.RESHAPE, shape=shape)


def _keep(y: Node, reduced: Node, x: Node) -> Node:
    """`y`, shaped like the reduction `reduced` of `x`, with the reduced axes back as ones."""
    axis = reduced.attributes["axis"]
    return _reshape(y, tuple(1 if i in axis else size for i, size in enumerate(x.shape)))


def _spread(grad: Node, y: Node, x: Node) -> Node:
    """`grad` of a sum, repeated for every element that was summed."""
    return _keep(grad, y, x).apply(Op.BROADCAST, shape=x.shape)


def _flip(x: Node) -> Node:
    """`x` with its last two axes exchanged."""
    *lead, rows, columns = range(x.ndim)
    return x.apply(Op.TRANSPOSE, axes=(*lead, columns, rows))


def _power_base(grad: Node, y: Node, a: Node, b: Node) -> Node:
    """grad * b * a**(b-1); a known exponent is settled now, so that a**0 has slope 0 even at 0."""
    if b.op is not Op.CONST or b.value is None:
        return grad * (b * a ** (b - 1.0))
    lower = b.graph.add_const(np.where(b.value == 0, 1, b.value - 1).astype(b.dtype))
    return grad * (b * a**lower)


def _winners(grad: Node, y: Node, x: Node) -> Node:
    """`grad` of a max, shared equally between the elements that attain it."""
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
    """(softmax - target) / rows, for targets that sum to anything, not only to one."""
    chance = logits.apply(Op.LOG_SOFTMAX).apply(Op.EXP)
    total = target.apply(Op.SUM, axis=-1, keepdims=True)
    return (chance * total - target) * (grad / (logits.size / logits.shape[-1]))


def _target(grad: Node, y: Node, logits: Node, target: Node) -> Node:
    return logits.apply(Op.LOG_SOFTMAX) * (grad / -(logits.size / logits.shape[-1]))


def _inverse(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argsort(axes))


# For y = op(a, b), one function (grad, y, a, b) -> node per input: what that input receives when y
# received grad. An empty row stops the gradient: step, equal and one_hot are flat or undefined.
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
    Op.RELU: (lambda g, y, a: g * y.apply(Op.STEP),),  # of y, so that a need not be kept
    Op.STEP: (),
    Op.EQUAL: (),
    Op.MATMUL: (lambda g, y, a, b: g @ _flip(b), lambda g, y, a, b: _flip(a) @ g),
    Op.TRANSPOSE: (lambda g, y, a: g.apply(Op.TRANSPOSE, axes=_inverse(y.attributes["axes"])),),
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
