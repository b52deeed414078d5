"""Algebra for the optimiser: laws of arithmetic as text, and rules about shapes as functions.

`simplify` returns an equal, cheaper node, or None if no rule applies.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from graph.errors import GraphError
from graph.ir import Graph, Node, Op, Shape
from graph.ops import is_elementwise

# One law per line; to add a law, add a line. A letter matches any node, a number a constant whose
# elements all equal it. The laws hold for infinities and NaN: so x * 0 -> 0 is not a law.
LAWS = """
    x + 0         ->  x
    x - 0         ->  x
    0 - x         ->  -x
    x * 1         ->  x
    x * -1        ->  -x
    x / 1         ->  x
    x ** 1        ->  x
    x ** 2        ->  x * x
    x ** -1       ->  1 / x
    -(-x)         ->  x
    x + (-y)      ->  x - y
    x - (-y)      ->  x + y
    (-x) * (-y)   ->  x * y
    (-x) / (-y)   ->  x / y
    relu(relu(x)) ->  relu(x)
"""
COMMUTATIVE = {Op.ADD, Op.MUL, Op.EQUAL}
_OPERATORS = {ast.Add: Op.ADD, ast.Sub: Op.SUB, ast.Mult: Op.MUL, ast.Div: Op.DIV, ast.Pow: Op.POW}


class Term(NamedTuple):
    """A side of a law: an operation on terms, letters and numbers."""

    op: Op
    operands: tuple[Term | str | float, ...]


def parse_law(line: str) -> tuple[Term | str | float, Term | str | float]:
    """Return the two sides of a law.

    >>> parse_law("x + 0 -> x")
    (Term(op=<Op.ADD: 'add'>, operands=('x', 0)), 'x')
    """
    left, right = (_term(ast.parse(side.strip(), mode="eval").body) for side in line.split("->"))
    return left, right


def _term(tree: ast.expr) -> Term | str | float:
    match tree:
        case ast.Name(id=letter):
            return letter
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Term(Op.NEG, (_term(operand),))
        case ast.BinOp(left=left, op=operator, right=right):
            return Term(_OPERATORS[type(operator)], (_term(left), _term(right)))
        case ast.Call(func=ast.Name(id=name), args=operands):
            return Term(Op(name), tuple(map(_term, operands)))
    raise GraphError(
        f"a law is made of letters, numbers and operations, not '{ast.unparse(tree)}'."
    )


def _matches(term: Term | str | float, node: Node, letters: dict[str, Node]) -> bool:
    """Return True if `node` matches `term`, and bind the letters."""
    if isinstance(term, str):
        return letters.setdefault(term, node).name == node.name
    if not isinstance(term, Term):
        return node.value is not None and bool((node.value == term).all())
    if node.op is not term.op:
        return False
    inputs = [node.graph.nodes[name] for name in node.inputs]
    for order in (inputs, inputs[::-1]) if node.op in COMMUTATIVE else (inputs,):
        trial = dict(letters)
        if all(_matches(t, x, trial) for t, x in zip(term.operands, order, strict=True)):
            letters.update(trial)
            return True
    return False


def _build(term: Term | str | float, letters: dict[str, Node], like: Node, name: str = "") -> Node:
    if isinstance(term, str):
        return letters[term]
    if not isinstance(term, Term):
        return like.graph.add_const(term, dtype=like.dtype)
    operands = [_build(operand, letters, like) for operand in term.operands]
    return like.graph.add_op(term.op, operands, name)


def _use_laws(node: Node) -> Node | None:
    for left, right in PARSED_LAWS.get(node.op, ()):
        letters: dict[str, Node] = {}
        # a constant that broadcasts the result must stay
        if _matches(left, node, letters) and _broadcast(letters.values()) == node.shape:
            return _build(right, letters, node, node.name)
    return None


def _broadcast(nodes: Iterable[Node]) -> Shape:
    return np.broadcast_shapes(*(node.shape for node in nodes))


def _parse_laws() -> dict[Op, list[tuple[Term, Term | str | float]]]:
    laws: dict[Op, list[tuple[Term, Term | str | float]]] = {}
    for line in LAWS.strip().splitlines():
        left, right = parse_law(line)
        assert isinstance(left, Term), f"the left side of '{line}' is no operation"
        laws.setdefault(left.op, []).append((left, right))
    return laws


PARSED_LAWS = _parse_laws()


def _source(x: Node) -> Node:
    return x.graph.nodes[x.inputs[0]]


def _same_shape(y: Node, x: Node) -> Node | None:
    """Replace a reshape, broadcast or cast without effect by x."""
    return x if (x.shape, x.dtype) == (y.shape, y.dtype) else None


def _twice(y: Node, x: Node) -> Node | None:
    """Merge reshape(reshape(x)), and the same for broadcast."""
    if x.op is not y.op:
        return None
    return _source(x).apply(y.op, name=y.name, shape=y.shape)


def _transpose_twice(y: Node, x: Node) -> Node | None:
    """Merge transpose(transpose(x))."""
    if x.op is not Op.TRANSPOSE:
        return None
    axes = tuple(x.attributes["axes"][a] for a in y.attributes["axes"])
    return _source(x).apply(Op.TRANSPOSE, name=y.name, axes=axes)


def _transpose_nothing(y: Node, x: Node) -> Node | None:
    """Replace a transpose without effect by x."""
    return x if y.attributes["axes"] == tuple(range(x.ndim)) else None


def _reduce_nothing(y: Node, x: Node) -> Node | None:
    """Replace a sum, mean or max over axes of size one by a reshape."""
    return x.apply(Op.RESHAPE, name=y.name, shape=y.shape) if x.size == y.size else None


def _broadcast_last(y: Node, *inputs: Node) -> Node | None:
    """Replace broadcast(a) + b by a + b, broadcast if still needed."""
    sources = [_source(x) if x.op is Op.BROADCAST else x for x in inputs]
    if sources == list(inputs):
        return None
    if _broadcast(sources) == y.shape:
        return y.graph.add_op(y.op, sources, y.name)
    return y.graph.add_op(y.op, sources).apply(Op.BROADCAST, name=y.name, shape=y.shape)


def _divide_by_power_of_two(y: Node, a: Node, b: Node) -> Node | None:
    """Replace x / 8 by x * 0.125: exact for powers of two, and faster."""
    if b.value is None or not np.all(np.abs(np.frexp(b.value)[0]) == 0.5):
        return None
    if np.any(np.abs(np.frexp(b.value)[1]) > 100):  # the inverse must be a normal number
        return None
    return a.apply(Op.MUL, a.graph.add_const(1 / b.value), name=y.name)


def _sum_one_hot(y: Node, x: Node) -> Node | None:
    """Replace sum(one_hot(labels)) over the classes by 1."""
    if x.op is not Op.ONE_HOT or y.attributes["axis"] != (x.ndim - 1,):
        return None
    return y.graph.add_const(np.ones(y.shape, y.dtype), y.name)


def _expand_softmax(y: Node, x: Node) -> Node:
    """Expand softmax to exp(x - max) / sum, whose parts can be shared."""
    axis = y.attributes["axis"]
    powers = (x - x.apply(Op.MAX, axis=axis, keepdims=True)).apply(Op.EXP)
    return powers.apply(Op.DIV, powers.apply(Op.SUM, axis=axis, keepdims=True), name=y.name)


def _expand_log_softmax(y: Node, x: Node) -> Node:
    """Expand log_softmax to (x - max) - log(sum(exp(x - max)))."""
    axis = y.attributes["axis"]
    shifted = x - x.apply(Op.MAX, axis=axis, keepdims=True)
    total = shifted.apply(Op.EXP).apply(Op.SUM, axis=axis, keepdims=True)
    return shifted.apply(Op.SUB, total.apply(Op.LOG), name=y.name)


def _expand_cross_entropy(y: Node, logits: Node, target: Node) -> Node:
    """Expand cross_entropy to -mean(sum(target * log_softmax))."""
    rows = (target * logits.apply(Op.LOG_SOFTMAX)).apply(Op.SUM, axis=-1)
    return rows.apply(Op.MEAN).apply(Op.NEG, name=y.name)


# Rules about shapes and attributes, by the operation they replace; the first match is used. Each
# is a function (node, *its inputs) -> node or None.
STRUCTURE: Mapping[Op, tuple[Callable[..., Node | None], ...]] = {
    **dict.fromkeys(filter(is_elementwise, Op), (_broadcast_last,)),
    Op.DIV: (_broadcast_last, _divide_by_power_of_two),
    Op.RESHAPE: (_same_shape, _twice),
    Op.BROADCAST: (_same_shape, _twice),
    Op.CAST: (_same_shape,),
    Op.TRANSPOSE: (_transpose_nothing, _transpose_twice),
    Op.SUM: (_reduce_nothing, _sum_one_hot),
    Op.MEAN: (_reduce_nothing,),
    Op.MAX: (_reduce_nothing,),
    Op.SOFTMAX: (_expand_softmax,),
    Op.LOG_SOFTMAX: (_expand_log_softmax,),
    Op.CROSS_ENTROPY: (_expand_cross_entropy,),
}


def simplify(new: Graph, node: Node) -> Node | None:
    """Return the result of the first rule that applies to `node`, in `new` under its name."""
    simpler = _use_laws(node)
    inputs = [new.nodes[name] for name in node.inputs]
    for rule in STRUCTURE.get(node.op, ()) if simpler is None else ():
        simpler = simpler or rule(node, *inputs)
    return simpler
