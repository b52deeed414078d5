"""Matrix-vector products with constant weights by shifted additions, without multipliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from chop.errors import ConfigError
from chop.hw.arith.golden import Fixed
from chop.hw.arith.shift_add import Network, build
from chop.hw.design.component import Component, ComponentCost, Parameter, register, sign_parameter
from chop.hw.design.cycle_model import Bracket, Twin
from chop.hw.design.samples import BIT, BYTE, COUNT, DOWN, NARROW, WIDE, stream
from chop.hw.library.constant_product import MOST_BITS, ConstantProduct, fields
from chop.hw.library.fixed_linear import PRODUCTS, Weights

MOST_NODES = 1 << 16
"""Most nodes that the fields of a node can number."""


@dataclass(frozen=True)
class NetworkTiming:
    """Cycle of each node of a network in which every `step`-th addition has a register."""

    network: Network
    step: int

    def at(self, node: int) -> int:
        """Return the cycles from the inputs to a node's value."""
        return self.network.levels[node] // self.step

    def before(self, node: int) -> int:
        """Return the cycles from the inputs to the addition of a node."""
        return (self.network.levels[node] - 1) // self.step

    @property
    def stages(self) -> int:
        """Cycles until every row has its value."""
        return max((self.at(r.node) for r in self.network.results if r.node >= 0), default=0)

    def delays(self) -> list[int]:
        """Return the cycles for which each node's value is delayed for later nodes."""
        cycles, first = [0] * len(self.network.levels), self.network.inputs
        for number, node in enumerate(self.network.nodes, first):
            for operand in (node.left, node.right):
                cycles[operand] = max(cycles[operand], self.before(number) - self.at(operand))
        for result in self.network.results:
            if result.node >= 0:
                cycles[result.node] = max(cycles[result.node], self.stages - self.at(result.node))
        return cycles


@register
@dataclass(frozen=True, eq=False)
class ShiftAdd(ConstantProduct):
    """Product weight @ x + bias by shifted additions that rows share."""

    module = "fixed_shift_add"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.acc_width > MOST_BITS or len(self.network.levels) >= MOST_NODES:
            raise ConfigError(
                f"fixed_shift_add: {len(self.network.levels)} nodes and results of "
                f"{self.acc_width} bits. Allowed: below {MOST_NODES}, up to {MOST_BITS}."
            )

    @cached_property
    def network(self) -> Network:
        """Network of additions."""
        weight = self.weights.weight
        return _network(weight.tobytes(), weight.shape)

    @cached_property
    def timing(self) -> NetworkTiming:
        """Pipeline of the network."""
        return NetworkTiming(self.network, self.adders_per_stage)

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "DATA_IN_0_PRECISION_0": self.source.format.width,
            **sign_parameter(self.source.format),
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.source.shape[-1],
            **self.result_parameters(),
            "STAGES": self.timing.stages,
            "NODES": len(self.network.levels),
            "NETWORK": self.node_words(),
            "SUMS": self.sum_words(),
            "STARTS": self.start_words(),
        }

    def node_words(self) -> tuple[int, ...]:
        """Return the nodes as words of the module's parameter."""
        timing, first = self.timing, self.network.inputs
        number = self.source.format
        spans, delays = self.network.spans(number.low, number.high), timing.delays()
        words = [
            fields((0, 40), (spans[k].width, 7), (0, 10), (delays[k], 5)) for k in range(first)
        ]
        for k, node in enumerate(self.network.nodes, first):
            late = [timing.before(k) - timing.at(n) for n in (node.left, node.right)]
            is_register = timing.at(k) > timing.before(k)
            words.append(
                fields(
                    *((node.left, 16), (node.right, 16), (node.shift, 6), (node.sign < 0, 1)),
                    *((is_register, 1), (spans[k].width, 7), (late[0], 5), (late[1], 5)),
                    (delays[k], 5),
                )
            )
        return tuple(words)

    def sum_words(self) -> tuple[int, ...]:
        """Return the outputs as words of the module's parameter."""
        words = []
        for r in self.network.results:
            if r.node < 0:
                words.append(fields((0, 23), (1, 1)))
                continue
            late = self.timing.stages - self.timing.at(r.node)
            words.append(
                fields((r.node, 16), (r.shift + self.extra, 6), (r.sign < 0, 1), (0, 1), (late, 5))
            )
        return tuple(words)

    def start_words(self) -> tuple[int, ...]:
        """Return the bias plus half a step of each output, in two's complement."""
        return tuple(start % (1 << MOST_BITS) for start in self.starts())

    def twins(self) -> list[Twin]:
        return [Bracket(self.timing.stages + 1)]

    def cost(self) -> ComponentCost:
        number = self.source.format
        spans, delays = self.network.spans(number.low, number.high), self.timing.delays()
        first, timing = self.network.inputs, self.timing
        bits = sum(
            span.width * (delays[k] + (k >= first and timing.at(k) > timing.before(k)))
            for k, span in enumerate(spans)
        )
        outputs = self.outputs[0].elements
        return ComponentCost(
            register_bits=bits + outputs * (self.acc_width + 2 * self.format.width)
        )

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls.sample(4, 8),
            cls.sample(6, 4, step=1, b=Fixed(12, 11)),
            cls.sample(8, 3, step=3, x=NARROW, w=NARROW, b=NARROW),
            cls.sample(5, 6, x=COUNT, w=COUNT, b=COUNT, y=DOWN),
            cls.sample(3, 2, x=WIDE, w=WIDE, b=None, y=Fixed(6, 1)),
            cls.sample(4, 4, step=8, y=Fixed(5, 1, overflow="wrap", rounding="nearest_away")),
            cls.sample(1, 2, x=BIT, w=BIT, b=BIT, y=Fixed(5, 0)),
            cls.sample(2, 3, w=BIT, b=None, y=Fixed(12, 4, is_signed=False)),
            cls.sample(4, 2, step=1, x=Fixed(16, 8), w=Fixed(16, 12), y=Fixed(16, 6)),
            cls(stream(2, 3, lanes=3), _unlike_rows(), WIDE, 1),
        ]


def _unlike_rows() -> Weights:
    """Return weights of one row that is an input, which waits for the sums of the other."""
    return Weights(np.array([[1, 0, 0], [99, -77, 53]]), BYTE)


@lru_cache(maxsize=64)
def _network(codes: bytes, shape: tuple[int, int]) -> Network:
    """Return the network of a matrix; cached, since a search builds a layer many times."""
    return build(np.frombuffer(codes, np.int64).reshape(shape))


PRODUCTS.register("shift_add", ShiftAdd.make)
