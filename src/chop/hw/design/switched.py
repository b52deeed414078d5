"""One component for layers that are alike: its constants are switched, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from chop.errors import ConfigError
from chop.hw.arith.golden import Ints, Span
from chop.hw.design.component import Component, ComponentCost, Memory, Parameter
from chop.hw.design.cycle_model import Twin, record

WIDEST = "ACC_WIDTH"
"""The parameter that may differ: an accumulator of the widest layer holds the sums of all."""


@dataclass(frozen=True, eq=False)
class Switched(Component):
    """`layers` in turn, each for `in_flight` tensors; parameters, streams and cycles are equal."""

    layers: tuple[Component, ...]
    in_flight: int = 1

    def __post_init__(self) -> None:
        first = self.layers[0]
        problems = [problem for each in self.layers[1:] for problem in differences(first, each)]
        if problems:
            raise ConfigError(f"{first.kind}: {'; '.join(problems)}.")
        for name in ("module", "name", "pins", "inputs", "outputs", "has_sums"):
            object.__setattr__(self, name, getattr(first, name))

    def golden(self, *data: Ints) -> Ints:
        out: Ints = np.empty((len(data[0]), *self.output.shape), dtype=np.int64)
        turns = np.arange(len(out)) // self.in_flight % len(self.layers)
        for number, layer in enumerate(self.layers):
            out[turns == number] = layer.golden(*(x[turns == number] for x in data))
        return out

    def ends(self) -> tuple[Ints, ...]:
        """Return the ends of every layer, in the order in which tensors meet the layers."""
        all_ends = [layer.ends() for layer in self.layers]
        count = max((len(each[0]) for each in all_ends if each), default=0)
        rounds = -(-count // self.in_flight)
        turns = np.arange(rounds * self.in_flight).reshape(rounds, 1, self.in_flight)
        return tuple(
            np.concatenate([x[turns % len(x)] for x in same], axis=1).reshape(-1, *x0.shape)
            for x0, same in zip(self.inputs, zip(*all_ends, strict=True), strict=True)
            if count
        )

    def intervals(self) -> Mapping[str, Span]:
        spans = [layer.intervals() for layer in self.layers]
        return {
            name: Span(
                min(each[name].low for each in spans),
                max(each[name].high for each in spans),
                spans[0][name].frac_width,
            )
            for name in spans[0]
        }

    def in_pass(self, number: int) -> Component:
        return self.layers[number]

    def parameters(self) -> Mapping[str, Parameter]:
        tables = [layer.parameters() for layer in self.layers]
        widest = [cast(int, each[WIDEST]) for each in tables if WIDEST in each]
        return {**tables[0], **({WIDEST: max(widest)} if widest else {})}

    def memories(self) -> tuple[Memory, ...]:
        listed = zip(*(layer.memories() for layer in self.layers), strict=True)
        return tuple(self._banked(same) for same in listed)

    def _banked(self, same: tuple[Memory, ...]) -> Memory:
        """Return the memories of all layers concatenated; one memory if they are equal."""
        first = same[0]
        if all(each.words == first.words for each in same):
            return first
        words = tuple(word for each in same for word in each.words)
        repeats = self.in_flight * self.layers[0].reads(first)
        return replace(first, words=words, banks=len(same), repeats=repeats)

    def twins(self) -> list[Twin]:
        return self.layers[0].twins()

    def cycles(self) -> int:
        return self.layers[0].cycles()

    def products(self) -> int:
        return self.layers[0].products()

    def cost(self) -> ComponentCost:
        first = self.layers[0]
        inside = sum(memory.bits for memory in first.memories())
        whole = sum(memory.bits for memory in self.memories())
        return first.cost() + ComponentCost(memory_bits=whole - inside)


def differences(one: Component, other: Component) -> list[str]:
    """Return the differences that keep two components apart, in words."""
    if type(one) is not type(other):
        return [f"{one.kind} and {other.kind}"]
    pairs = zip((*one.inputs, *one.outputs), (*other.inputs, *other.outputs), strict=False)
    problems = [f"streams {a} and {b}" for a, b in pairs if a != b]
    mine, theirs = one.parameters(), other.parameters()
    for name in mine.keys() | theirs.keys():
        a, b = mine.get(name), theirs.get(name)
        if name != WIDEST and a != b:
            problems.append(f"{name} is {a!s:.40} and {b!s:.40}")
    if not problems and [record(t) for t in one.twins()] != [record(t) for t in other.twins()]:
        problems.append("other cycles")
    return sorted(problems) or _unlike_memories(one, other)


def _unlike_memories(one: Component, other: Component) -> list[str]:
    """Return memories that cannot be switched: those that the component itself reads."""
    pairs = zip(one.memories(), other.memories(), strict=True)
    return [
        f"the memory '{a.name}'"
        for a, b in pairs
        if (a.width, len(a.words)) != (b.width, len(b.words))
        or (not a.is_streamed and a.words != b.words)
    ]
