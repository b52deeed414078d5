"""Random graphs built twice, in this IR and in torch, so that the two can be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from graph.ir import Graph, Node

SHAPES = [(), (3,), (2, 3), (2, 1), (1, 3), (2, 3, 4), (4, 3), (3, 2)]


@dataclass
class Pair:
    """A graph and the same computation as torch tensors, node by node."""

    graph: Graph = field(default_factory=Graph)
    nodes: list[Node] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, node: Node, tensor: torch.Tensor) -> None:
        assert node.shape == tuple(tensor.shape)
        self.nodes.append(node)
        self.tensors.append(tensor)

    def leaves(self) -> dict[str, torch.Tensor]:
        return {n.name: t for n, t in zip(self.nodes, self.tensors, strict=True) if t.is_leaf}


Move = Callable[[np.random.Generator, Node, torch.Tensor], tuple[Node, torch.Tensor]]


def _axis(rng: np.random.Generator, x: Node) -> tuple[int, ...]:
    count = int(rng.integers(1, x.ndim + 1)) if x.ndim else 0
    return tuple(int(a) for a in rng.permutation(x.ndim)[:count])


def _reduction(name: str, torch_name: str) -> Move:
    def move(rng: np.random.Generator, x: Node, t: torch.Tensor) -> tuple[Node, torch.Tensor]:
        axis, keep = _axis(rng, x), bool(rng.integers(2))
        if not axis:
            return x * 1.0, t * 1.0
        result = getattr(torch, torch_name)(t, dim=axis, keepdim=keep)
        return x.apply(name, axis=axis, keepdims=keep), result

    return move


def _transpose(rng: np.random.Generator, x: Node, t: torch.Tensor) -> tuple[Node, torch.Tensor]:
    axes = tuple(int(a) for a in rng.permutation(x.ndim))
    return x.apply("transpose", axes=axes), t.permute(axes)


def _reshape(rng: np.random.Generator, x: Node, t: torch.Tensor) -> tuple[Node, torch.Tensor]:
    shape = (-1,) if rng.integers(2) else (1, -1)
    return x.apply("reshape", shape=shape), t.reshape(shape)


def _broadcast(rng: np.random.Generator, x: Node, t: torch.Tensor) -> tuple[Node, torch.Tensor]:
    shape = (2, *(int(rng.integers(1, 3)) if size == 1 else size for size in x.shape))
    return x.apply("broadcast", shape=shape), t.broadcast_to(shape)


def _along(name: str) -> Move:
    def move(rng: np.random.Generator, x: Node, t: torch.Tensor) -> tuple[Node, torch.Tensor]:
        if not x.ndim:
            return x * 1.0, t * 1.0
        axis = int(rng.integers(-x.ndim, x.ndim))
        return x.apply(name, axis=axis), getattr(torch, name)(t, dim=axis)

    return move


# Arguments are kept where the function is smooth and mild, so that 1e-12 means something.
UNARY: dict[str, Move] = {
    "neg": lambda _, x, t: (-x, -t),
    "exp": lambda _, x, t: (x.apply("tanh").apply("exp"), t.tanh().exp()),
    "log": lambda _, x, t: ((x * x + 0.5).apply("log"), (t * t + 0.5).log()),
    "sqrt": lambda _, x, t: ((x * x + 0.5).apply("sqrt"), (t * t + 0.5).sqrt()),
    "tanh": lambda _, x, t: (x.apply("tanh"), t.tanh()),
    "sigmoid": lambda _, x, t: (x.apply("sigmoid"), t.sigmoid()),
    "relu": lambda _, x, t: (x.apply("relu"), t.relu()),
    "square": lambda _, x, t: (x.apply("tanh") ** 2.0, t.tanh() ** 2.0),
    "cube": lambda _, x, t: (x.apply("tanh") ** 3.0, t.tanh() ** 3.0),
    "transpose": _transpose,
    "reshape": _reshape,
    "broadcast": _broadcast,
    "sum": _reduction("sum", "sum"),
    "mean": _reduction("mean", "mean"),
    "max": _reduction("max", "amax"),
    "softmax": _along("softmax"),
    "log_softmax": _along("log_softmax"),
    "cast": lambda _, x, t: (
        x.apply("cast", dtype="float64"),
        t.to(torch.float64) * 1.0,
    ),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (b * b + 1.0),
}


def _positive(x: Any) -> Any:
    return x * x + 0.5


def _power(pair: Pair, a: int, b: int) -> None:
    x, y = pair.nodes[a], pair.nodes[b]
    exponent = y.apply("tanh")
    pair.add(_positive(x) ** exponent, _positive(pair.tensors[a]) ** pair.tensors[b].tanh())


def _cross_entropy(pair: Pair, a: int, b: int) -> None:
    x, y = pair.nodes[a], pair.nodes[b]
    if x.shape != y.shape or not x.ndim:
        return
    target = y.apply("softmax")
    rows = pair.tensors[b].softmax(-1) * pair.tensors[a].log_softmax(-1)
    pair.add(x.apply("cross_entropy", target), -rows.sum(-1).mean())


def _matmul(pair: Pair, a: int, b: int) -> None:
    x, y = pair.nodes[a], pair.nodes[b]
    if x.ndim >= 2 and y.ndim >= 2 and x.shape[-1] == y.shape[-1]:
        axes = (*range(y.ndim - 2), y.ndim - 1, y.ndim - 2)
        if _fits(x.shape[:-2], y.shape[:-2]):
            flipped = y.apply("transpose", axes=axes)
            pair.add(x @ flipped, pair.tensors[a] @ pair.tensors[b].permute(axes))


def _fits(*shapes: tuple[int, ...]) -> bool:
    try:
        return np.prod(np.broadcast_shapes(*shapes)) <= 200
    except ValueError:
        return False


def make_random_pair(seed: int, steps: int = 14) -> Pair:
    """Inputs, a few constants, `steps` random operations, and a scalar loss as the last node."""
    rng = np.random.default_rng(seed)
    pair = Pair()
    for number in range(int(rng.integers(2, 5))):
        value = rng.normal(size=SHAPES[rng.integers(len(SHAPES))])
        pair.values[f"x{number}"] = np.asarray(value)
        tensor = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        pair.add(pair.graph.add_input(f"x{number}", np.shape(value)), tensor)
    for value in (float(rng.normal()), 0.0, 1.0):
        pair.add(pair.graph.add_const(value), torch.tensor(value, dtype=torch.float64))
    for _ in range(steps):
        _grow(rng, pair)
    _finish(pair)
    return pair


def _grow(rng: np.random.Generator, pair: Pair) -> None:
    a, b = (int(i) for i in rng.integers(len(pair.nodes), size=2))
    kind = rng.integers(10)
    if kind < 5:
        name = list(UNARY)[rng.integers(len(UNARY))]
        pair.add(*UNARY[name](rng, pair.nodes[a], pair.tensors[a]))
    elif kind < 8 and _fits(pair.nodes[a].shape, pair.nodes[b].shape):
        combine = BINARY[list(BINARY)[rng.integers(len(BINARY))]]
        node, tensor = (combine(xs[a], xs[b]) for xs in (pair.nodes, pair.tensors))
        pair.add(node.apply("tanh"), tensor.tanh())
    elif kind == 8 and _fits(pair.nodes[a].shape, pair.nodes[b].shape):
        _power(pair, a, b)
    else:
        (_matmul if rng.integers(2) else _cross_entropy)(pair, a, b)


def _finish(pair: Pair) -> None:
    """The loss: the sum of the means of tanh of every node, so that all of them matter."""
    used = range(len(pair.nodes))
    loss = sum(
        (pair.nodes[i].apply("tanh").apply("mean") for i in used), pair.nodes[0].apply("sum")
    )
    total = sum((pair.tensors[i].tanh().mean() for i in used), pair.tensors[0].sum())
    assert isinstance(loss, Node) and isinstance(total, torch.Tensor)
    pair.add(loss, total)


@pytest.fixture
def random_pair() -> Callable[..., Pair]:
    """`random_pair(seed, steps)`: a random graph in both systems."""
    return make_random_pair
