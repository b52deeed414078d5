"""The intermediate representation: operations, nodes, and the graph that holds them.

A `Graph` is a list of `Node`s. A node says which operation it is, which earlier nodes it reads
(by name) and, because shapes and dtypes are worked out the moment it is added, exactly what kind
of array it will be. Nothing is computed here: the graph is a description.

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

    Nodes do arithmetic by adding to their graph: `x * 2.0 + y` makes a const, a mul and an add.
    """

    name: str
    op: Op
    inputs: tuple[str, ...]
    shape: Shape
    dtype: np.dtype[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    value: Array | None = None  # of a CONST, and of no other
    graph: Graph = field(repr=False, kw_only=True)

    def apply(self, op: Op | str, *others: Node | float, name: str = "", **attributes: Any) -> Node:
        """The node `op(self, *others)`, added to the graph; numbers become constants."""
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
        """The right-hand side: `mul(x, y)`, `const 2`, `input`."""
        if self.op is Op.CONST:
            assert self.value is not None, f"constant '{self.name}' has no value"
            return f"const {self.value:.6g}" if self.value.ndim == 0 else "const […]"
        return f"{self.op.value}({', '.join(self.inputs)})" if self.inputs else self.op.value


class Graph:
    """Nodes by name, in the order they were added.

    `aliases` holds names that now stand for another node: a pass that finds `y` to be the same as
    `x` drops `y` and notes `y -> x`, so asking for `y` goes on working.
    """

    def __init__(self, avoid: Iterable[str] = ()) -> None:
        """An empty graph that gives nodes without a name none of the names in `avoid`."""
        self.nodes: dict[str, Node] = {}
        self.aliases: dict[str, str] = {}
        self._used: Counter[str] = Counter()
        self._avoid = frozenset(avoid)

    def successor(self) -> Graph:
        """An empty graph to take this one's place: it invents no name that is taken here."""
        graph = Graph(avoid=[*self.nodes, *self.aliases])
        graph._used = self._used.copy()
        return graph

    @classmethod
    def from_nodes(cls, nodes: Iterable[Node]) -> Graph:
        """A graph of copies of `nodes`, in any order; each must be spelt out in full."""
        graph = cls()
        for node in nodes:
            graph.add_node(node)
        for node in graph.nodes.values():
            for name in node.inputs:
                graph.node(name)
        return graph

    def add_input(self, name: str, shape: Iterable[int] = (), dtype: Any = "float64") -> Node:
        """A value given at run time."""
        sizes = tuple(int(size) for size in shape)
        if any(size < 1 for size in sizes):
            raise ShapeError(f"node '{name}' (input): every size must be at least 1, got {sizes}.")
        where = f"node '{name}' (input)"
        return self.add_node(Node(name, Op.INPUT, (), sizes, find_dtype(where, dtype), graph=self))

    def add_const(self, value: Any, name: str = "", dtype: Any = None) -> Node:
        """A value known now. Python numbers become float64, arrays keep their dtype."""
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
        """The node `op(*inputs)`, its shape and dtype inferred and checked."""
        op = find_op(op)
        operands = [self.node(i) for i in inputs]
        call = Call(op, name or self._fresh(op), operands, attributes)
        shape, dtype, settled = call.infer()
        names = tuple([node.name for node in operands])
        return self.add_node(Node(call.name, op, names, shape, dtype, settled, graph=self))

    def add_node(self, node: Node) -> Node:
        """A copy of a finished node (perhaps another graph's) as a node of this graph."""
        if node.name in self:
            raise NameTakenError(f"node '{node.name}': the graph already has a node of that name.")
        self.nodes[node.name] = node if node.graph is self else replace(node, graph=self)
        return self.nodes[node.name]

    def alias(self, name: str, target: str) -> None:
        """Let `name` stand for the node `target` from now on."""
        if name in self.nodes:
            raise NameTakenError(f"alias '{name}': the graph already has a node of that name.")
        self.aliases[name] = self.node(target).name

    def node(self, node: Node | str) -> Node:
        """The node of that name in this graph (a node of another graph is looked up by name)."""
        name = node if isinstance(node, str) else node.name
        found = self.nodes.get(self.aliases.get(name, name))
        if found is None:
            raise UnknownNodeError(f"no node is called '{name}'. {suggest(name, self.nodes)}")
        return found

    def copy(self) -> Graph:
        """An equal graph that can grow apart from this one."""
        graph = self.successor()
        for node in self:
            graph.add_node(node)
        graph.aliases.update(self.aliases)
        return graph

    def _fresh(self, op: Op) -> str:
        """A name not yet taken: mul, mul_1, mul_2 …"""
        base = op.value
        while True:
            count = self._used[base]
            self._used[base] = count + 1
            name = f"{base}_{count}" if count else base
            if name not in self and name not in self._avoid:
                return name

    def users(self) -> dict[str, list[str]]:
        """For each node, the nodes that read it (twice, if they read it twice)."""
        found: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self:
            for name in node.inputs:
                found[name].append(node.name)
        return found

    def inputs(self) -> list[Node]:
        """The INPUT nodes, in order."""
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
        return "\n".join(_columns(rows))

    def __repr__(self) -> str:
        return f"<Graph of {len(self)} nodes>"

    def to_svg(self, title: str = "") -> str:
        """A drawing of the graph as an SVG document."""
        from graph import draw  # the picture reads the IR; the IR needs no picture to be imported

        return draw.to_svg(*draw.picture(self), title)

    def to_dot(self, title: str = "") -> str:
        """The same for Graphviz."""
        from graph import draw

        return draw.to_dot(*draw.picture(self), title)


def settings_of(node: Node) -> str:
    """The attributes of a node as text."""
    return ", ".join(f"{key}={_short(value)}" for key, value in node.attributes.items())


def _short(value: object) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], Step):
        return " ".join(step.op.value for step in value)
    return str(value)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([text.ljust(w) for text, w in zip(row, widths, strict=True)] for row in rows)
    return [" ".join(row).rstrip() for row in padded]
