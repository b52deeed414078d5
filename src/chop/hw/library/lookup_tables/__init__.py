"""Layers of lookup tables: tables of up to six inputs, and sums of their bits by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith.golden import Ints, Span
from chop.hw.design.component import Component, ComponentCost, Parameter, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.samples import stream
from chop.hw.design.stream import Stream
from chop.hw.library.constant_product import fields
from chop.hw.library.fixed_linear import Weights
from chop.hw.library.fixed_table_sum import TableSum
from chop.hw.lower import Lowerer, Value, lowers
from chop.hw.lower.engine import TRUTH, row_major
from chop.hw.reference.exact import Exact
from chop.hw.reference.exact_ops import Arguments, exact_op, refuse_setting
from chop.ir.ops import node_module

MOST_TABLE_INPUTS, MOST_INPUT_BITS = 6, 1 << 16
"""Most inputs of a table, and most input bits that the fields of a table can number."""


@register
@dataclass(frozen=True, eq=False)
class Tables(Component):
    """One bit of each row of `contents` (tables, 2**n), at the address by its `connections`."""

    module = "lookup_tables"
    has_sums = False

    source: Stream
    contents: Ints
    connections: Ints

    def __post_init__(self) -> None:
        tables, n = self.connections.shape
        bits = self.source.shape[-1]
        if not 1 <= n <= MOST_TABLE_INPUTS or self.contents.shape != (tables, 1 << n):
            raise ConfigError(
                f"lookup_tables: {tables} tables of {n} inputs with contents "
                f"{self.contents.shape}. Allowed: 1 to {MOST_TABLE_INPUTS} inputs, 2**n bits each."
            )
        if self.source.lanes != bits or self.source.format != TRUTH or bits > MOST_INPUT_BITS:
            raise ConfigError(
                f"lookup_tables: a beat must be a whole vector of up to {MOST_INPUT_BITS} bits, "
                f"got {self.source}."
            )
        if self.connections.min() < 0 or self.connections.max() >= bits:
            raise ConfigError(
                f"lookup_tables: connections {self.connections.min()} to "
                f"{self.connections.max()} of {bits} input bits."
            )
        out = Stream((*self.source.shape[:-1], tables), tables, TRUTH)
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (out,))

    def golden(self, *data: Ints) -> Ints:
        tables, n = self.connections.shape
        address = (data[0][..., self.connections] << np.arange(n)).sum(-1)
        result: Ints = self.contents[np.arange(tables), address]
        return result

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.source.shape[-1],
            "DATA_OUT_0_TENSOR_SIZE_DIM_0": len(self.connections),
            "TABLE_INPUTS": self.connections.shape[1],
            "TABLES": self.words(),
        }

    def words(self) -> tuple[int, ...]:
        """Return the tables as words of the module's parameter, three each."""
        words: list[int] = []
        for content, sources in zip(self.contents, self.connections, strict=True):
            numbers = fields(*((int(source), 16) for source in sources))
            content_word = fields(*((int(bit), 1) for bit in content))
            words += [content_word, numbers % (1 << 64), numbers >> 64]
        return tuple(words)

    def twins(self) -> list[Twin]:
        return []

    def cost(self) -> ComponentCost:
        return ComponentCost()

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [cls.sample(9, 7, 6), cls.sample(4, 5, 3), cls.sample(2, 3, 1)]

    @classmethod
    def sample(cls, bits: int, tables: int, n: int) -> Tables:
        """Return tables for tests; one is constant, and an input is read twice."""
        rng = np.random.default_rng(7)
        contents = rng.integers(0, 2, (tables, 1 << n))
        contents[0] = 1
        return cls(
            stream(3, bits, lanes=bits, number=TRUTH), contents, rng.integers(0, bits, (tables, n))
        )


# -- from a node -----------------------------------------------------------------------------------


@lowers("lookup_tables")
def lower_tables(low: Lowerer, node: fx.Node) -> Value:
    """Lower to tables with the present contents and connections."""
    module: Any = node_module(node)
    value = _bits(low, node)
    contents = module.contents().cpu().numpy().astype(np.int64)
    connections = module.connections.cpu().numpy().astype(np.int64)
    shape = (*value.shape[:-1], len(connections))
    source = Stream(value.shape, value.shape[-1], TRUTH)
    wire = low.add(node, Tables(source, contents, connections), value)
    return Value(wire, shape, row_major(shape))


@lowers("class_sum")
def lower_class_sum(low: Lowerer, node: fx.Node) -> Value:
    """Lower to sums of tables of the bits of each class."""
    module: Any = node_module(node)
    if module.scale != 1:
        raise low.refuse(
            node, f"scale={module.scale}", "Allowed: 1. A scale is for the training: set it to 1"
        )
    value = _bits(low, node)
    each = value.shape[-1] // module.classes
    ones: Ints = np.repeat(np.eye(module.classes, dtype=np.int64), each, axis=1)
    number = low.result_format(node, Span(0, each, 0))
    component = TableSum.make(
        low, node.name, replace(low.stream(value), shape=value.shape), Weights(ones, TRUTH), number
    )
    shape = (*value.shape[:-1], module.classes)
    return Value(low.add(node, component, value), shape, row_major(shape))


def _bits(low: Lowerer, node: fx.Node) -> Value:
    """Return the operand of `node` in the order of torch; raise if it is no stream of bits."""
    value = low.operand(node)
    value = low.arrange(node, value, row_major(value.shape), value.shape)
    if low.stream(value).format != TRUTH:
        raise low.refuse(
            node,
            f"numbers in {low.stream(value).format}",
            "Allowed: bits, from a thermometer code or from tables",
        )
    return value


# -- by definition ---------------------------------------------------------------------------------


@exact_op("lookup_tables", "input tables connections")
def exact_tables(a: Arguments) -> Exact:
    """Return the sign of the entry that the bits of each table choose, as 1 or 0."""
    x: Exact = a["input"]
    tables: Exact = a["tables"]
    ones = np.asarray(x.codes > 0)
    columns = []
    for entries, sources in zip(tables.codes, a["connections"].tolist(), strict=True):
        left = np.broadcast_to(entries, (*x.shape[:-1], len(entries)))
        for source in reversed(sources):  # the last input halves the table first
            low, high = np.split(left, 2, axis=-1)
            left = np.where(ones[..., source, None], high, low)
        columns.append(left[..., 0] > 0)
    return Exact(np.stack(columns, -1).astype(np.int64))


@exact_op("class_sum", "input classes scale")
def exact_class_sum(a: Arguments) -> Exact:
    """Return the number of ones among the bits of each class."""
    if a["scale"] != 1:
        raise refuse_setting("scale", a["scale"], "1")
    x: Exact = a["input"]
    return x.take(np.stack([part.sum(-1) for part in np.split(x.codes, a["classes"], -1)], -1))
