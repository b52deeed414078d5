"""Concatenation of two tensors along a dimension; the second may be constant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.component import Component, ComponentCost, Memory, Parameter, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Phase, Process, take
from chop.hw.design.samples import BYTE, NARROW, codes, stream
from chop.hw.design.stream import Stream, pack_words
from chop.hw.lower import Lowerer, Value, fixed_formats, lowers
from chop.hw.lower.constants import Constant, constant_operand
from chop.hw.lower.engine import row_major
from chop.hw.reference.exact import Exact
from chop.hw.reference.exact_ops import Arguments, exact_op
from chop.ir.meta import mase_meta


class ConcatTwin(Twin):
    """Cycle model: blocks in turn; those of a leading constant wait for a beat of the stream."""

    name = "Concat"

    def __init__(self, beats: tuple[int, int], is_swapped: bool, is_constant: bool) -> None:
        self.arguments = (beats, is_swapped, is_constant)
        self.beats, self.is_swapped, self.is_constant = beats, is_swapped, is_constant

    def process(self) -> Process:
        first, second = self.beats
        if not self.is_constant:
            phases = [take(first), take(second, (1,))]
            return Process(phases[:: -1 if self.is_swapped else 1], (0, 0))
        if not self.is_swapped:
            return Process((take(first), Phase(second, gives=(0,))))
        one = {0: 1}
        waits = Phase(second, needs=one, gives=(0,))
        return Process((waits, Phase(first, needs=one, frees=one, gives=(0,))), slots=(2,))


@register
@dataclass(frozen=True, eq=False)
class Concat(Component):
    """Blocks of `blocks` = (left, right) elements in turn; right ones first if `is_swapped`."""

    left: Stream
    right: Stream
    blocks: tuple[int, int]
    shape: tuple[int, ...]
    is_swapped: bool = False
    constant: Ints | None = None
    """Codes of a constant right tensor, flat; None: it is a stream."""
    module = "stream_concat"
    has_sums = False

    def __post_init__(self) -> None:
        pair = (self.left, self.right)
        if self.left.lanes != self.right.lanes or self.left.format != self.right.format:
            raise ConfigError(
                f"stream_concat: operands must have one format and parallelism, got {self.left} "
                f"and {self.right}."
            )
        counts = {s.elements / b for s, b in zip(pair, self.blocks, strict=True)}
        if len(counts) > 1 or any(b % self.left.lanes for b in self.blocks):
            raise ConfigError(
                f"stream_concat: blocks {self.blocks} must divide operands of {self.left.elements} "
                f"and {self.right.elements} elements alike, in beats of {self.left.lanes}."
            )
        object.__setattr__(self, "inputs", pair if self.constant is None else pair[:1])
        out = Stream(self.shape, self.left.lanes, self.left.format)
        object.__setattr__(self, "outputs", (out,))

    def golden(self, *data: Ints) -> Ints:
        left = data[0].reshape(len(data[0]), -1, self.blocks[0])
        right = self.constant if self.constant is not None else data[1]
        blocks = np.asarray(right).reshape(-1, left.shape[1], self.blocks[1])
        blocks = np.broadcast_to(blocks, (len(left), *blocks.shape[1:]))
        pair = (blocks, left) if self.is_swapped else (left, blocks)
        return np.concatenate(pair, axis=2).reshape(-1, *self.shape)

    def parameters(self) -> Mapping[str, Parameter]:
        lanes = self.left.lanes
        return {
            "DATA_WIDTH": self.left.beat_width,
            "DATA_IN_0_BEATS": self.blocks[0] // lanes,
            "DATA_IN_1_BEATS": self.blocks[1] // lanes,
            "IS_SWAPPED": self.is_swapped,
            "WAITS": self.is_swapped and self.constant is not None,
        }

    def memories(self) -> tuple[Memory, ...]:
        if self.constant is None:
            return ()
        rows = self.constant.reshape(-1, self.right.lanes)
        words = tuple(pack_words(rows, self.right.format.width))
        return (Memory("data_in_1", words, self.right.beat_width),)

    def reads(self, memory: Memory) -> int:
        return 1

    def twins(self) -> list[Twin]:
        lanes = self.left.lanes
        beats = (self.blocks[0] // lanes, self.blocks[1] // lanes)
        return [ConcatTwin(beats, self.is_swapped, self.constant is not None)]

    def cost(self) -> ComponentCost:
        return super().cost() + ComponentCost(register_bits=2 * self.left.beat_width)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        tokens, one = stream(3, 4, lanes=2), stream(1, 4, lanes=2)
        fixed = codes(BYTE, 4)
        return [
            cls(tokens, one, (12, 4), (4, 4)),
            cls(tokens, stream(3, 2, lanes=2), (4, 2), (3, 6), is_swapped=True),
            cls(tokens, one, (12, 4), (4, 4), constant=fixed),
            cls(tokens, one, (12, 4), (4, 4), is_swapped=True, constant=fixed),
            cls(stream(2, number=NARROW), stream(3, number=NARROW), (2, 3), (5,)),
        ]


# -- from a node -----------------------------------------------------------------------------------


@lowers("stream_concat")
def lower_concat(low: Lowerer, node: fx.Node) -> Value:
    """Lower to concatenations, one operand after the other."""
    listed = node.args[0] if node.args else node.kwargs["tensors"]
    assert isinstance(listed, tuple | list), "cat takes a list"
    dims = len(mase_meta(node).common["results"]["data_out_0"]["shape"])
    dim = int(low.setting(node, "dim", node.args[1] if len(node.args) > 1 else 0)) % dims
    if dim == 0:
        raise low.refuse(node, "tensors behind each other in the batch", "Allowed: dimensions 1 …")
    parts: list[Value | Constant] = [_part(low, node, k) for k in range(len(listed))]
    number = _common_format(low, node, parts)
    joined = parts[0]
    for k, part in enumerate(parts[1:]):
        joined = _joined(low, node, (joined, part), dim - 1, number, k == len(parts) - 2)
    if isinstance(joined, Constant):
        raise low.refuse(node, "constants alone", "Allowed: a tensor that is computed among them")
    return joined


def _part(low: Lowerer, node: fx.Node, number: int) -> Value | Constant:
    constant = constant_operand(low, node, number)
    if constant is not None:
        return constant
    value = low.operand(node, number)
    return low.arrange(node, value, row_major(value.shape), value.shape)


def _common_format(low: Lowerer, node: fx.Node, parts: Sequence[Value | Constant]) -> Fixed:
    number = low.wanted_format(node)
    if number is not None:
        return number
    numbers = [p.format if isinstance(p, Constant) else low.stream(p).format for p in parts]
    return numbers[0] if len(set(numbers)) == 1 else fixed_formats.union(numbers)


def _joined(
    low: Lowerer,
    node: fx.Node,
    parts: tuple[Value | Constant, Value | Constant],
    dim: int,
    number: Fixed,
    is_last: bool,
) -> Value:
    """Return the concatenation of two parts; a constant is the second operand."""
    is_swapped = isinstance(parts[0], Constant)
    left, right = (parts[1], parts[0]) if is_swapped else parts
    if isinstance(left, Constant):
        raise low.refuse(node, "constants alone", "Allowed: a tensor that is computed among them")
    blocks = (math.prod(left.shape[dim:]), math.prod(right.shape[dim:]))
    lanes = math.gcd(low.stream(left).lanes, *blocks)
    a = Stream((math.prod(left.shape),), lanes, number)
    b = Stream((math.prod(right.shape),), lanes, number)
    sizes = [p.shape[dim] for p in (left, right)]
    shape = (*left.shape[:dim], sum(sizes), *left.shape[dim + 1 :])
    out = shape if shape[-1] % lanes == 0 else (math.prod(shape),)
    codes: Any = None if isinstance(right, Value) else right.encoded(number)
    component = Concat(a, b, blocks, out, is_swapped, codes)
    wires = [v.wire for v in (left, right) if isinstance(v, Value)]
    low.components[node.name] = component
    wire = low.builder.add(low.builder.fresh(node.name), component, *wires)
    return Value(wire, shape, row_major(shape))


# -- by definition ---------------------------------------------------------------------------------


@exact_op("cat", "tensors dim")
def exact_cat(a: Arguments) -> Exact:
    """Return the concatenated tensors, at a scale that holds all."""
    parts: list[Exact] = list(a["tensors"])
    frac_width = max(p.frac_width for p in parts)
    divisor = math.lcm(*(p.divisor for p in parts))
    leading = max(len(p.codes) for p in parts)
    rows = [p.at(frac_width, divisor) for p in parts]
    wide = object if any(r.dtype == object for r in rows) else np.int64
    rows = [np.broadcast_to(r, (leading, *r.shape[1:])).astype(wide) for r in rows]
    joined = np.concatenate(rows, axis=int(a.get("dim", 0)))
    return Exact(joined, frac_width, divisor, any(p.is_rounded for p in parts))
