"""Intermediate representation: operations, nodes, and the graph that holds them.

A `Graph` is a list of `Node`s. A node has an operation and the names of the nodes it reads. Its
shape and dtype are inferred when it is added. The graph is a description: it computes nothing.

    >>> g = Graph()
    >>> x = g.add_input("x", (2, 3))
    >>> y = (x * 2.0).apply("sum", axis=1)
    >>> print(g)
    x     = input         float64[2, 3]
    const = const 2       float64[]
    mul   = mul(x, const) float64[2, 3]
    sum   = sum(mul)      float64[2]    axis=(1,)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from graph.errors import NameTakenError, ShapeError, UnknownNodeError, suggest
from graph.ops import Call, Op, Shape, Step, find_dtype, find_op

__all__ = ["Array", "Graph", "Node", "Op", "Shape", "Step"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One value of the graph: an operation applied to other nodes.

    Arithmetic on nodes adds to their graph: `x * 2.0 + y` adds a const, a mul and an add.
    """

    name: str
    op: Op
    inputs: tuple[str, ...]
    shape: Shape
    dtype: np.dtype[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    value: Array | None = None  # only of a CONST
    graph: Graph = field(repr=False, kw_only=True)

    def apply(self, op: Op | str, *others: Node | float, name: str = "", **attributes: Any) -> Node:
        """Add the node `op(self, *others)` to the graph and return it; numbers become constants."""
        operands = [self, *(self._as_node(other) for other in others)]
        return self.graph.add_op(op, operands, name, **attributes)

    def _as_node(self, other: Node | float) -> Node:
        return other if isinstance(other, Node) else self.graph.add_const(other, dtype=self.dtype)

    def __add__(self, other: Node | float) -> Node:
        return self.apply(Op.ADD, other)

    def __sub__(self, other: Node | float) -> Node:
        return self.apply(Op.SUB, other)

    def __mul__(self, other: Node | float) -> Node:
        return self.apply(Op.MUL, other)

    def __truediv__(self, other: Node | float) -> Node:
        return self.apply(Op.DIV, other)

    def __pow__(self, other: Node | float) -> Node:
        return self.apply(Op.POW, other)

    def __matmul__(self, other: Node) -> Node:
        return self.apply(Op.MATMUL, other)

    def __radd__(self, other: float) -> Node:
        return self._as_node(other) + self

    def __rsub__(self, other: float) -> Node:
        return self._as_node(other) - self

    def __rmul__(self, other: float) -> Node:
        return self._as_node(other) * self

    def __rtruediv__(self, other: float) -> Node:
        return self._as_node(other) / self

    def __neg__(self) -> Node:
        return self.apply(Op.NEG)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def type(self) -> str:
        """Dtype and shape in short: `float64[2, 3]`."""
        return f"{self.dtype}{list(self.shape)}"

    @property
    def expression(self) -> str:
        """Right-hand side: `mul(x, y)`, `const 2`, `input`."""
        if self.op is Op.CONST:
            assert self.value is not None, f"constant '{self.name}' has no value"
            return f"const {self.value:.6g}" if self.value.ndim == 0 else "const […]"
        return f"{self.op.value}({', '.join(self.inputs)})" if self.inputs else self.op.value


class Graph:
    """Nodes by name, in the order they were added.

    `aliases` maps names to other nodes: a pass that replaces `y` by `x` drops `y` and adds the
    alias `y -> x`, so that `y` can still be looked up.
    """

    def __init__(self, avoid: Iterable[str] = ()) -> None:
        """Create an empty graph that does not generate the names in `avoid`."""
        self.nodes: dict[str, Node] = {}
        self.aliases: dict[str, str] = {}
        self._used: Counter[str] = Counter()
        self._avoid = frozenset(avoid)

    def successor(self) -> Graph:
        """Return an empty graph to replace this one; it generates no name that is in use here."""
        graph = Graph(avoid=[*self.nodes, *self.aliases])
        graph._used = self._used.copy()
        return graph

    @classmethod
    def from_nodes(cls, nodes: Iterable[Node]) -> Graph:
        """Return a graph of copies of `nodes`, in any order, without inference."""
        graph = cls()
        for node in nodes:
            graph.add_node(node)
        for node in graph.nodes.values():
            for name in node.inputs:
                graph.node(name)
        return graph

    def add_input(self, name: str, shape: Iterable[int] = (), dtype: Any = "float64") -> Node:
        """Add a value that is passed at run time."""
        sizes = tuple(int(size) for size in shape)
        if any(size < 1 for size in sizes):
            raise ShapeError(f"node '{name}' (input): every size must be at least 1, got {sizes}.")
        where = f"node '{name}' (input)"
        return self.add_node(Node(name, Op.INPUT, (), sizes, find_dtype(where, dtype), graph=self))

    def add_const(self, value: Any, name: str = "", dtype: Any = None) -> Node:
        """Add a constant. Python numbers become float64, arrays keep their dtype."""
        name = name or self._fresh(Op.CONST)
        if dtype is None:
            dtype = value.dtype if isinstance(value, np.ndarray | np.generic) else "float64"
        array = np.array(value, dtype=find_dtype(f"node '{name}' (const)", dtype))
        array.flags.writeable = False
        node = Node(name, Op.CONST, (), array.shape, array.dtype, value=array, graph=self)
        return self.add_node(node)

    def add_op(
        self, op: Op | str, inputs: Sequence[Node | str], name: str = "", **attributes: Any
    ) -> Node:
        """Add the node `op(*inputs)`; infer and check its shape and dtype."""
        op = find_op(op)
        operands = [self.node(i) for i in inputs]
        call = Call(op, name or self._fresh(op), operands, attributes)
        shape, dtype, settled = call.infer()
        names = tuple([node.name for node in operands])
        return self.add_node(Node(call.name, op, names, shape, dtype, settled, graph=self))

    def add_node(self, node: Node) -> Node:
        """Add a copy of a finished node, which may belong to another graph."""
        if node.name in self:
            raise NameTakenError(f"node '{node.name}': the graph already has a node of that name.")
        self.nodes[node.name] = node if node.graph is self else replace(node, graph=self)
        return self.nodes[node.name]

    def alias(self, name: str, target: str) -> None:
        """Make `name` another name of the node `target`."""
        if name in self.nodes:
            raise NameTakenError(f"alias '{name}': the graph already has a node of that name.")
        self.aliases[name] = self.node(target).name

    def node(self, node: Node | str) -> Node:
        """Return the node of that name in this graph, also for a node of another graph."""
        name = node if isinstance(node, str) else node.name
        own = self.nodes.get(self.aliases.get(name, name))
        if own is None:
            raise UnknownNodeError(f"no node is called '{name}'. {suggest(name, self.nodes)}")
        return own

    def copy(self) -> Graph:
        """Return an independent copy."""
        graph = self.successor()
        for node in self:
            graph.add_node(node)
        graph.aliases.update(self.aliases)
        return graph

    def _fresh(self, op: Op) -> str:
        """Return an unused name: mul, mul_1, mul_2."""
        base = op.value
        while True:
            count = self._used[base]
            self._used[base] = count + 1
            name = f"{base}_{count}" if count else base
            if name not in self and name not in self._avoid:
                return name

    def users(self) -> dict[str, list[str]]:
        """Return the readers of each node, once per read."""
        readers: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self:
            for name in node.inputs:
                readers[name].append(node.name)
        return readers

    def inputs(self) -> list[Node]:
        """Return the INPUT nodes, in order."""
        return [node for node in self if node.op is Op.INPUT]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __len__(self) -> int:
        return len(self.nodes)

    def __contains__(self, name: object) -> bool:
        return name in self.nodes or name in self.aliases

    def __str__(self) -> str:
        rows = [(node.name, f"= {node.expression}", node.type, settings_of(node)) for node in self]
        rows += [(name, f"= {target}", "(alias)", "") for name, target in self.aliases.items()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        padded = ([text.ljust(w) for text, w in zip(row, widths, strict=True)] for row in rows)
        return "\n".join(" ".join(row).rstrip() for row in padded)

    def __repr__(self) -> str:
        return f"<Graph of {len(self)} nodes>"

    def to_svg(self, title: str = "") -> str:
        """Return a drawing of the graph as an SVG document."""
        from graph import draw  # late: `draw` imports this module

        return draw.to_svg(*draw.picture(self), title)

    def to_dot(self, title: str = "") -> str:
        """Return the drawing for Graphviz."""
        from graph import draw

        return draw.to_dot(*draw.picture(self), title)


def settings_of(node: Node) -> str:
    """Return the attributes of a node as text."""
    return ", ".join(f"{key}={_short(value)}" for key, value in node.attributes.items())


def _short(value: object) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], Step):
        return " ".join(step.op.value for step in value)
    return str(value)
