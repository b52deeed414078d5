"""Reordering: the elements of a tensor, or some of them, in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from chop.errors import ConfigError
from chop.hw.arith.golden import Ints
from chop.hw.design.component import Component, ComponentCost, Memory, Parameter, register
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Phase, Process
from chop.hw.design.samples import NARROW, stream
from chop.hw.design.stream import Stream, pack_words

Banks = tuple[tuple[int, ...], ...]


class ReorderTwin(Twin):
    """Cycle model of two banks of registers, for designs of earlier versions."""

    name = "Reorder"

    def __init__(self, beats: int) -> None:
        self.arguments = (beats,)
        self.beats = beats

    def process(self) -> Process:
        return Process(_whole(self.beats, self.beats), slots=(2 * self.beats,), depth=0)


class BlockReorderTwin(Twin):
    """Cycle model of two tensors in block RAM, one written while the other is read."""

    name = "Block reorder"

    def __init__(self, in_beats: int, out_beats: int) -> None:
        self.arguments = (in_beats, out_beats)
        self.in_beats, self.out_beats = in_beats, out_beats

    def process(self) -> Process:
        phases = _whole(self.in_beats, self.out_beats)
        return Process(phases, slots=(2 * self.in_beats,), latency=1)


def _whole(in_beats: int, out_beats: int) -> tuple[Phase, ...]:
    """Return the phases that give `out_beats` of a whole tensor and free it with the last."""
    needs = {0: in_beats}
    last = Phase(needs=needs, frees=needs, gives=(0,))
    return (Phase(out_beats - 1, needs=needs, gives=(0,)), last)


@register
@dataclass(frozen=True)
class Reorder(Component):
    """Elements of each tensor in another order: output element i is input element order[i].

    Elements may be left out. If whole beats move, they may also be repeated.
    """

    source: Stream
    order: tuple[int, ...]
    shape: tuple[int, ...]
    module = "stream_reorder"
    has_sums = False

    def __post_init__(self) -> None:
        size = self.source.elements
        if not all(0 <= i < size for i in self.order):
            raise ConfigError(f"Reorder: order must name elements from 0 to {size - 1}.")
        if not self.moves_beats and len(set(self.order)) < len(self.order):
            raise ConfigError(
                f"Reorder: order must name each of {size} elements once, or whole beats of "
                f"{self.source.lanes}."
            )
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (replace(self.source, shape=self.shape),))

    @property
    def moves_beats(self) -> bool:
        """True if every output beat is an input beat."""
        return moves_beats(self.order, self.source.lanes)

    def golden(self, *data: Ints) -> Ints:
        flat = data[0].reshape(len(data[0]), -1)
        return flat[:, np.asarray(self.order)].reshape(-1, *self.shape)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.source.elements,
            "DATA_OUT_0_TENSOR_SIZE_DIM_0": len(self.order),
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
            "MOVES_BEATS": self.moves_beats,
        }

    def memories(self) -> tuple[Memory, ...]:
        lanes, beats = self.source.lanes, self.source.beats
        address_width = max(1, (beats - 1).bit_length())
        index = np.asarray(self.order, dtype=np.int64).reshape(-1, lanes)
        if self.moves_beats:
            words = tuple(pack_words(index[:, :1] // lanes, address_width))
            return (Memory("order", words, address_width, is_streamed=False),)
        bank_width = max(1, (lanes - 1).bit_length())
        banks = np.asarray(banks_of(self.order, lanes, beats))
        read = banks.reshape(-1)[index]  # the bank of each lane of each output beat
        turned = np.zeros_like(index)
        np.put_along_axis(turned, read, index // lanes, axis=1)
        low, high = pack_words(read, bank_width), pack_words(turned, address_width)
        words = tuple(a | b << (lanes * bank_width) for a, b in zip(low, high, strict=True))
        taking = tuple(pack_words(np.argsort(banks, axis=1), bank_width))
        width = lanes * bank_width
        return (
            Memory("order", words, width + lanes * address_width, is_streamed=False),
            Memory("write", taking, width, is_streamed=False, parameter="WRITE_FILE"),
        )

    def twins(self) -> list[Twin]:
        return [BlockReorderTwin(self.source.beats, self.output.beats)]

    def cost(self) -> ComponentCost:
        bits = 2 * self.source.elements * self.source.format.width
        registers = 3 * self.source.beat_width
        return super().cost() + ComponentCost(memory_bits=bits, register_bits=registers)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        turned = tuple(np.arange(12).reshape(2, 6).T.ravel().tolist())
        heads = tuple(np.arange(24).reshape(3, 2, 4).transpose(1, 0, 2).ravel().tolist())
        mixed = tuple(np.random.default_rng(3).permutation(24).tolist())
        return [
            cls(stream(2, 6, lanes=2), turned, (6, 2)),
            cls(stream(5, number=NARROW), (4, 2, 0, 1, 3), (5,)),
            cls(stream(8, lanes=8), (7, 6, 5, 4, 3, 2, 1, 0), (8,)),
            cls(stream(3, 8, lanes=4), heads, (2, 3, 4)),
            cls(stream(24, lanes=3), mixed, (24,)),
            cls(stream(12, lanes=3), (9, 2, 4, 5, 1, 7), (6,)),
            cls(stream(6, lanes=2), (4, 5, 0, 1, 0, 1, 2, 3), (8,)),
        ]


def moves_beats(order: Sequence[int] | Ints, lanes: int) -> bool:
    """Return True if every `lanes` consecutive elements of `order` are one beat of the input."""
    index = np.asarray(order, dtype=np.int64).reshape(-1, lanes)
    starts = index[:, :1]
    return bool((index == starts + np.arange(lanes)).all() and (starts % lanes == 0).all())


@lru_cache(maxsize=64)
def banks_of(order: tuple[int, ...], lanes: int, beats: int) -> Banks:
    """Return the bank of each lane of each input beat, so that no beat uses a bank twice.

    The edges between input and output beats are coloured (König): an element takes a bank that is
    free on both sides. If there is none, two banks are exchanged along a path.

    >>> banks_of((0, 2, 1, 3), 2, 2)
    ((0, 1), (1, 0))
    """
    left = np.full((beats, lanes), -1)  # the element in each bank, by input and by output beat
    right = np.full((len(order) // lanes, lanes), -1)
    place = {element: k // lanes for k, element in enumerate(order)}
    for element in sorted(place):
        _colour(element, left, right, place, lanes)
    for element in sorted({*range(beats * lanes)} - {*place}):  # not read: any free bank
        row = left[element // lanes]
        row[int(np.argmax(row < 0))] = element
    banks = np.empty(beats * lanes, dtype=np.int64)
    banks[left.reshape(-1)] = np.tile(np.arange(lanes), beats)
    return tuple(tuple(int(b) for b in row) for row in banks.reshape(beats, lanes))


def _colour(element: int, left: Ints, right: Ints, place: Mapping[int, int], lanes: int) -> None:
    """Assign a bank to `element`; move others if needed."""
    into, out = element // lanes, place[element]
    free = np.flatnonzero((left[into] < 0) & (right[out] < 0))
    if free.size:
        left[into, free[0]] = right[out, free[0]] = element
        return
    a = int(np.argmax(left[into] < 0))
    b = int(np.argmax(right[out] < 0))
    path, side, at = [], 0, out  # elements in turn in banks a, b, a … from the output beat on
    while (other := int((right if side == 0 else left)[at, a if side == 0 else b])) >= 0:
        path.append(other)
        at = other // lanes if side == 0 else place[other]
        side = 1 - side
    for k, other in enumerate(path):  # first all out, then all in: the path shares its beats
        bank = a if k % 2 == 0 else b
        left[other // lanes, bank] = right[place[other], bank] = -1
    for k, other in enumerate(path):
        bank = b if k % 2 == 0 else a
        left[other // lanes, bank] = right[place[other], bank] = other
    left[into, a] = right[out, a] = element
