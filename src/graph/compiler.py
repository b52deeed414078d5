"""Compilation of a graph to a Python function.

`evaluate` sorts nodes, looks up functions and allocates arrays at every call. `compile_graph` does
this once and writes the calls as Python source (`Compiled.source`), which Python compiles.
Intermediate arrays share a few buffers, which are reused after their last reader. A FUSED node runs
block by block, so that its intermediate values stay in the cache.

    >>> g = Graph()
    >>> x = g.add_input("x", (3,))
    >>> y = (x * x + 1.0).apply("sqrt", name="y")
    >>> step = compile_graph(g, [y])
    >>> print(step.source)
    def run(x0):
        mul(x0, x0, b0)
        add(b0, c1, b0)
        y4 = empty((3,), float64)
        sqrt(b0, y4)
        return y4,
    >>> step({"x": [0.0, 1.0, 2.0]})["y"].round(3).tolist()
    [1.0, 1.414, 2.236]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from graph.evaluator import KERNELS, ancestors, check_inputs, topological_sort
from graph.ir import Array, Graph, Node, Op, Step
from graph.ops import DTYPES, is_elementwise

BLOCK = 16384  # elements of one block of a FUSED node: 128 KiB of float64, well within a cache
VIEWS = {Op.TRANSPOSE, Op.RESHAPE, Op.BROADCAST}  # results may share memory with the input
# Source that writes an operation to {out}. Elementwise operations are plain calls without a row.
INTO: Mapping[Op, tuple[str, ...]] = {
    Op.MATMUL: ("matmul({0}, {1}, {out})",),
    Op.SUM: ("add_up({0}, {axis}, None, {out}, {keepdims})",),
    Op.MEAN: ("add_up({0}, {axis}, None, {out}, {keepdims})", "divide({out}, {count}, {out})"),
    Op.MAX: ("largest({0}, {axis}, None, {out}, {keepdims})",),
}
_NAMESPACE: Mapping[str, Any] = {
    **{op.value: kernel for op, kernel in KERNELS.items() if is_elementwise(op)},
    **{dtype: np.dtype(dtype) for dtype in DTYPES},
    "matmul": np.matmul,
    "divide": np.divide,
    "add_up": np.add.reduce,
    "largest": np.maximum.reduce,
    "empty": np.empty,
}


@dataclass(frozen=True)
class Compiled:
    """A graph as one function. Calls share buffers: use one `Compiled` per thread."""

    source: str
    inputs: tuple[Node, ...]
    outputs: tuple[str, ...]
    buffer_bytes: int
    _run: Callable[..., tuple[Array, ...]]

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the outputs by name, in new arrays."""
        values = check_inputs(self.inputs, inputs).values()
        with np.errstate(all="ignore"):
            results = self._run(*values)
        return {name: np.asarray(x) for name, x in zip(self.outputs, results, strict=True)}


def compile_graph(graph: Graph, outputs: Iterable[Node | str]) -> Compiled:
    """Return a function from the inputs of `graph` to `outputs`."""
    names = tuple(output if isinstance(output, str) else output.name for output in outputs)
    needed = ancestors(graph, names)
    order = [node for node in topological_sort(graph) if node.name in needed]
    writer = _Writer(graph, order, {graph.node(name).name for name in names})
    for node in order:
        writer.add(node)
    inputs = tuple(node for node in order if node.op is Op.INPUT)
    source = writer.source(inputs, [graph.node(name).name for name in names])
    namespace = dict(writer.namespace)
    exec(source, namespace)
    return Compiled(source, inputs, names, writer.memory.total_bytes(), namespace["run"])


class _Memory:
    """Numbered buffers, each reused after its last reader."""

    def __init__(self) -> None:
        self.storages: list[Array] = []
        self.readers: list[int] = []
        self._free: list[int] = []

    def take(self, byte_count: int) -> int:
        """Return the smallest free storage that is large enough, or a new one."""
        fitting = [s for s in self._free if self.storages[s].nbytes >= byte_count]
        if not fitting:
            self.storages.append(np.empty(max(1, byte_count), np.uint8))
            self.readers.append(0)
            return len(self.storages) - 1
        best = min(reversed(fitting), key=lambda s: self.storages[s].nbytes)
        self._free.remove(best)
        return best

    def release(self, storage: int) -> None:
        """Count one reader less."""
        self.readers[storage] -= 1
        if self.readers[storage] == 0:
            self._free.append(storage)

    def view(self, storage: int, node: Node) -> Array:
        """Return the start of a storage as an array for `node`."""
        byte_count = node.size * node.dtype.itemsize
        return self.storages[storage][:byte_count].view(node.dtype).reshape(node.shape)

    def total_bytes(self) -> int:
        """Return the bytes of all buffers."""
        return sum(storage.nbytes for storage in self.storages)


class _Writer:
    """Writer of one statement per node; tracks the memory of each value."""

    def __init__(self, graph: Graph, order: list[Node], outputs: set[str]) -> None:
        self.outputs = outputs
        self.namespace: dict[str, Any] = dict(_NAMESPACE)
        self.lines: list[str] = []
        self.memory = _Memory()
        self.variable: dict[str, str] = {}  # node -> its name in the source
        self.result: dict[str, str] = {}  # output -> its copy, where it needs one
        self.storage: dict[str, int] = {}  # node -> its memory, if it lives in a buffer
        needed = {node.name for node in order}
        self.reads = {k: sum(u in needed for u in users) for k, users in graph.users().items()}

    def source(self, inputs: Iterable[Node], outputs: Iterable[str]) -> str:
        """Return the source of the function."""
        arguments = ", ".join(self.variable[node.name] for node in inputs)
        places = {**self.variable, **self.result}
        results = "".join(f"{places[name]}, " for name in outputs).rstrip()
        body = [*self.lines, f"return {results}"]
        return "\n".join([f"def run({arguments}):", *(f"    {line}" for line in body)])

    def add(self, node: Node) -> None:
        """Write `node`, then release the memory that it was the last to read."""
        if node.op is Op.INPUT:
            self._name(node, "x")
        elif node.op is Op.CONST:
            self.namespace[self._name(node, "c")] = node.value
        elif node.op in VIEWS:
            self._add_view(node)
        elif is_elementwise(node.op) and node.name not in self.outputs:
            self._release_inputs(node)  # first: an elementwise result may overwrite its input
            self._compute_into(node, self._buffer(node))
            return
        else:
            self._add_other(node)
        self._release_inputs(node)
        if node.name in self.outputs and node.op in {Op.INPUT, Op.CONST, *VIEWS}:
            # outputs do not share memory with buffers, inputs or constants
            copy = self.result[node.name] = f"y{len(self.variable)}_{len(self.lines)}"
            self.lines.append(f"{copy} = {self.variable[node.name]}.copy()")

    def _add_other(self, node: Node) -> None:
        if not (is_elementwise(node.op) or node.op in INTO or node.op is Op.FUSED):
            self._call(node)
        elif node.name in self.outputs:
            name = self._name(node, "y")
            self.lines.append(f"{name} = empty({node.shape}, {node.dtype})")
            self._compute_into(node, name)
        else:
            self._compute_into(node, self._buffer(node))

    def _name(self, node: Node, letter: str) -> str:
        return self.variable.setdefault(node.name, f"{letter}{len(self.variable)}")

    def _buffer(self, node: Node) -> str:
        storage = self.memory.take(node.size * node.dtype.itemsize)
        self._live_in(node, storage)
        return self._bind(node, storage, self.memory.view(storage, node))

    def _live_in(self, node: Node, storage: int) -> None:
        self.storage[node.name] = storage
        self.memory.readers[storage] += self.reads[node.name]

    def _bind(self, node: Node, storage: int, array: Array) -> str:
        """Return a name for a buffer: b3, or b3_7 for another view of it."""
        name = f"b{storage}"
        old = self.namespace.setdefault(name, array)
        if (old.shape, old.strides, old.dtype) != (array.shape, array.strides, array.dtype):
            name = f"b{storage}_{len(self.variable)}"
            self.namespace[name] = array
        self.variable[node.name] = name
        return name

    def _release_inputs(self, node: Node) -> None:
        for name in node.inputs:
            if name in self.storage:
                self.memory.release(self.storage[name])

    def _compute_into(self, node: Node, out: str) -> None:
        args = [self.variable[name] for name in node.inputs]
        if is_elementwise(node.op):
            self.lines.append(f"{node.op.value}({', '.join([*args, out])})")
        elif node.op is Op.FUSED:
            name = f"fused{len(self.variable)}"
            self.namespace[name] = fused_kernel(node)
            self.lines.append(f"{name}({', '.join([*args, out])})")
        else:
            count = node.graph.nodes[node.inputs[0]].size / node.size
            keywords = {"keepdims": False, **node.attributes, "out": out, "count": count}
            self.lines.extend(line.format(*args, **keywords) for line in INTO[node.op])

    def _call(self, node: Node) -> None:
        """Write an operation that allocates its result."""
        result = self._name(node, "y")
        kernel = f"{node.op.value}_{result}"
        self.namespace[kernel] = partial(KERNELS[node.op], **node.attributes)
        args = ", ".join(self.variable[name] for name in node.inputs)
        self.lines.append(f"{result} = {kernel}({args})")

    def _add_view(self, node: Node) -> None:
        """Create the view of a buffer now; of any other value at run time."""
        (source,) = node.inputs
        storage = self.storage.get(source)
        if storage is None:
            self._call(node)
            return
        base = self.namespace[self.variable[source]]
        view = KERNELS[node.op](base, **node.attributes)
        if np.may_share_memory(base, view):
            self._live_in(node, storage)
            self._bind(node, storage, view)
        else:  # reshaping a transposed array copies
            self._call(node)


def fused_kernel(node: Node) -> Callable[..., None]:
    """Return a function (*inputs, out) for the steps of a FUSED node, by blocks if large."""
    inputs = [f"i{at}" for at in range(len(node.inputs))]
    lines, registers = _fused_lines(node.attributes["steps"], inputs)
    block = min(BLOCK // prod(node.shape[1:]) or 1, *node.shape[:1]) if node.shape else 1
    shape = (block, *node.shape[1:]) if node.shape else ()
    scratch = {name: np.empty(shape, node.dtype) for name in registers}
    arguments = ", ".join([*inputs, "out", *(f"{name}={name}" for name in registers)])
    namespace: dict[str, Any] = {**_NAMESPACE, **scratch}
    exec("\n    ".join([f"def fused({arguments}):", *lines]), namespace)
    run: Callable[..., None] = namespace["fused"]
    return run if shape == node.shape else _by_blocks(run, node, block, list(scratch.values()))


def _fused_lines(steps: Sequence[Step], inputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return one call per step, and the names of scratch arrays besides `out`."""
    last_read = {i: at for at, step in enumerate(steps) for i in step.operands}
    place, free = list(inputs), ["out"]
    registers: list[str] = []
    lines: list[str] = []
    for at, step in enumerate(steps):
        args = [place[i] for i in step.operands]
        done = {i for i in step.operands if i >= len(inputs) and last_read[i] == at}
        free.extend(place[i] for i in sorted(done))  # the result may overwrite them
        is_final = at == len(steps) - 1
        if not free and not is_final:
            registers.append(f"t{len(registers)}")
            free.append(registers[-1])
        place.append("out" if is_final else free.pop())
        lines.append(f"{step.op.value}({', '.join([*args, place[-1]])})")
    return lines, registers


def _by_blocks(
    run: Callable[..., None], node: Node, block: int, scratch: Sequence[Array]
) -> Callable[..., None]:
    """Return `run` by blocks of rows; inputs without rows are passed whole."""
    graph, (count, *_) = node.graph, node.shape
    operands = [graph.nodes[name] for name in node.inputs]
    has_rows = [x.ndim == node.ndim and x.shape[0] == count for x in operands]

    def blocked(*arrays: Array) -> None:
        *inputs, out = arrays
        for start in range(0, count, block):
            part = slice(start, start + block)
            some = [x[part] if rows else x for x, rows in zip(inputs, has_rows, strict=True)]
            run(*some, out[part], *(t[: count - start] for t in scratch))

    return blocked
