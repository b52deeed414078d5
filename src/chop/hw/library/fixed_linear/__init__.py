"""The folded matrix-vector product."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import torch
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints, Span
from chop.hw.design.clock import DEFAULT_MHZ, adders_per_register, operand_registers
from chop.hw.design.component import (
    LARGEST_IN_LOGIC,
    Component,
    Cost,
    Memory,
    Parameter,
    precision,
    register,
    result_precision,
)
from chop.hw.design.design import Wire
from chop.hw.design.process import Phase, Process
from chop.hw.design.samples import BIT, BYTE, COUNT, DOWN, NARROW, WIDE, row_ends, stream
from chop.hw.design.stream import Stream
from chop.hw.design.twin import Twin
from chop.hw.library.fixed_linear.weights import NO_BIAS as NO_BIAS
from chop.hw.library.fixed_linear.weights import ExternalWeights as ExternalWeights
from chop.hw.library.fixed_linear.weights import Weights as Weights
from chop.hw.library.fixed_linear.weights import sample_weights as sample_weights
from chop.hw.library.fixed_linear.weights import with_half as with_half
from chop.hw.lower import Lowerer, Value, formats, lowers
from chop.hw.lower.engine import row_major
from chop.hw.reference.exact import Exact, product
from chop.hw.reference.exact_ops import Arguments, exact_op, with_bias
from chop.ir.graph import MaseGraph
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import node_module
from chop.registry import Registry, suggest


class LinearTwin(Twin):
    """A replay buffer that feeds the dot products, `folds` = (input, output)."""

    name = "Linear"

    def __init__(
        self, folds: tuple[int, int], lanes: int, registers: int = 1, step: int = 1
    ) -> None:
        self.arguments = (folds, lanes, registers, step)
        self.folds, self.latency = folds, dot_latency(lanes, registers, step) + 1

    def process(self) -> Process:
        return linear_process(*self.folds, self.latency)


class ExternalLinearTwin(LinearTwin):
    """The same, whose weights are the second input and may be late."""

    name = "External linear"

    def process(self) -> Process:
        return linear_process(*self.folds, self.latency, True)


def dot_latency(lanes: int, registers: int = 1, step: int = 1) -> int:
    """Cycles of `fixed_dot_product`: operand, product and sum registers, and a tree of chains.

    `registers` of an operand; `step`: levels of the tree between registers.

    >>> [dot_latency(lanes) for lanes in (1, 4, 8, 12, 16, 64)]
    [2, 5, 6, 7, 7, 9]
    """
    chains = -(-lanes // 4)
    return registers + min(lanes, 4) + -(-(chains - 1).bit_length() // step)


@lru_cache(maxsize=256)
def linear_process(
    in_folds: int, out_folds: int, latency: int, takes_weights: bool = False
) -> Process:
    """A vector is read in every output fold as it comes, and freed beat by beat in the last.

    Where the weights are a stream that may be late, each step takes a beat of it, input 1.
    """
    one, takes = {0: 1}, (1,) if takes_weights else ()
    again = (
        Phase(in_folds - 1, takes, one, rises=1),
        Phase(1, takes, {0: in_folds}, gives=(0,)),
    )
    last = (
        Phase(in_folds - 1, takes, one, frees=one),
        Phase(1, takes, one, frees=one, gives=(0,)),
    )
    slots = 2 if out_folds == 1 or in_folds < 2 else in_folds
    inputs = (slots, 0) if takes_weights else (slots,)
    return Process((*again * (out_folds - 1), *last), inputs, latency)


def register_parameters(operand: int, tree_step: int) -> dict[str, Parameter]:
    """What the modules are told of their registers, where it is not one everywhere."""
    told: dict[str, Parameter] = {"OPERAND_REGISTERS": operand, "TREE_STEP": tree_step}
    return {name: value for name, value in told.items() if value != 1}


def check_lanes(where: str, channels: int, lanes: int) -> None:
    """An error unless `lanes` divides `channels`."""
    if lanes < 1 or channels % lanes:
        raise ConfigError(f"{where}: parallelism must divide {channels} outputs, got {lanes}.")


@register
@dataclass(frozen=True, eq=False)
class Linear(Component):
    """weight @ x + bias over the last dimension, cast to `format`."""

    source: Stream
    weights: Weights
    format: Fixed
    lanes: int = 1
    """Of the output."""
    clock_mhz: float = field(default=DEFAULT_MHZ, kw_only=True)
    module = "fixed_linear"

    def __post_init__(self) -> None:
        outputs, inputs = self.weights.weight.shape
        check_lanes("fixed_linear", outputs, self.lanes)
        if inputs != self.source.shape[-1]:
            raise ConfigError(
                f"fixed_linear: weights take {inputs} inputs, the stream has {self.source.shape}."
            )
        object.__setattr__(self, "inputs", (self.source,))
        out = Stream((*self.source.shape[:-1], outputs), self.lanes, self.format)
        object.__setattr__(self, "outputs", (out,))

    @property
    def folds(self) -> tuple[int, int]:
        """Input and output folds."""
        outputs, inputs = self.weights.weight.shape
        return inputs // self.source.lanes, outputs // self.lanes

    def golden(self, *data: Ints) -> Ints:
        sums = self.weights.accumulate(data[0], self.source.format)
        return golden.cast(sums, self.weights.frac(self.source.format), self.format)

    @cached_property
    def acc_width(self) -> int:
        """Bits of the accumulator."""
        return self.weights.acc_width(self.source.format, self.format.frac_width)

    def ends(self) -> tuple[Ints, ...]:
        return (self.weights.ends(self.source),)

    def intervals(self) -> Mapping[str, Span]:
        return {"ACC_WIDTH": self.weights.acc_span(self.source.format, self.format)}

    def parameters(self) -> Mapping[str, Parameter]:
        return {
            **precision("DATA_IN_0", self.source.format),
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.source.shape[-1],
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
            **self.weights.parameters(),
            **result_precision(self.format),
            "DATA_OUT_0_TENSOR_SIZE_DIM_0": self.outputs[0].shape[-1],
            "DATA_OUT_0_PARALLELISM_DIM_0": self.lanes,
            "ACC_WIDTH": self.acc_width,
            **register_parameters(*self.registers),
        }

    @property
    def has_late_weights(self) -> bool:
        """Whether they come from block RAM."""
        return self.weights.weight.size * self.weights.weight_format.width > LARGEST_IN_LOGIC

    @property
    def registers(self) -> tuple[int, int]:
        """Of an operand, and the levels of the adder tree between two."""
        operand = operand_registers(self.clock_mhz, is_late=self.has_late_weights)
        return operand, adders_per_register(self.clock_mhz)

    def for_clock(self, clock_mhz: float) -> Component:
        return replace(self, clock_mhz=clock_mhz)

    def memories(self) -> tuple[Memory, ...]:
        return self.weights.memories(self.source.lanes, self.lanes)

    def reads(self, memory: Memory) -> int:
        return self.vectors

    def twins(self) -> list[Twin]:
        return [LinearTwin(self.folds, self.source.lanes, *self.registers)]

    def cycles(self) -> int:
        return self.vectors * self.folds[0] * self.folds[1]

    def products(self) -> int:
        return self.source.elements * self.outputs[0].shape[-1]

    @property
    def vectors(self) -> int:
        """Of a tensor: as often are all the weights read."""
        return self.source.elements // self.source.shape[-1]

    def cost(self) -> Cost:
        registers = self.lanes * (self.acc_width + 2 * self.format.width)
        operands = self.source.lanes * (self.lanes + 1) * self.source.format.width
        bits = self.weights.memory_bits()  # packing all words to count them takes long
        return Cost(self.source.lanes * self.lanes, bits, registers + operands)

    @classmethod
    def sample(
        cls,
        inputs: int,
        outputs: int,
        in_lanes: int,
        out_lanes: int,
        *,
        x: Fixed = BYTE,
        w: Fixed = BYTE,
        b: Fixed | None = BYTE,
        y: Fixed = BYTE,
    ) -> Self:
        """A layer to test with."""
        source = stream(inputs, lanes=in_lanes, number=x)
        return cls(source, sample_weights(outputs, inputs, w, b), y, out_lanes)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [  # folds of 1, 2 and more in each direction; the corner (1, n) finds an early bias
            cls.sample(4, 8, 4, 4),
            cls.sample(4, 8, 4, 2),
            cls.sample(4, 2, 4, 2),
            cls.sample(6, 4, 3, 4),
            cls.sample(8, 4, 2, 2, x=NARROW, w=NARROW, b=NARROW),
            cls.sample(6, 6, 1, 1, w=NARROW, b=None),
            cls.sample(12, 3, 6, 3, b=WIDE, y=WIDE),
            cls.sample(10, 6, 5, 2, b=Fixed(12, 11)),
            cls.sample(8, 2, 8, 1, x=WIDE, w=WIDE, y=Fixed(6, 1)),
            cls.sample(18, 2, 18, 1),
            cls.sample(5, 3, 1, 3, y=Fixed(16, 10)),
            cls.sample(6, 4, 2, 2, w=BIT, b=BIT, y=Fixed(12, 4)),
            cls.sample(6, 4, 3, 2, x=COUNT, w=COUNT, b=COUNT, y=DOWN),
            cls.sample(6, 4, 6, 1, x=COUNT, y=COUNT),
            cls.sample(4, 4, 2, 2, w=COUNT, y=Fixed(5, 1, narrow=True)),
            cls.sample(4, 4, 2, 2, y=Fixed(5, 1, overflow="wrap", rounding="nearest_away")),
            cls.sample(
                4, 2, 2, 1, x=Fixed(32, 16), w=Fixed(32, 20), b=Fixed(32, 30), y=Fixed(32, 12)
            ),
            cls.sample(4, 2, 2, 1, x=NARROW, w=NARROW, b=None, y=Fixed(3, -12)),
            cls.sample(4, 2, 2, 1, x=NARROW, w=NARROW, b=None, y=Fixed(3, -12, rounding="floor")),
            cls.sample(4, 2, 2, 1, x=BIT, w=BIT, b=None, y=Fixed(5, 0)),
            cls.sample(32, 10, 4, 2),  # weights in block RAM
            *(cls.sample(18, 2, 18, 1).for_clock(mhz) for mhz in (50, 150)),
        ]


@register
@dataclass(frozen=True, eq=False)
class ExternalLinear(Linear):
    """The same, whose weights come from outside: all of them again for each vector.

    A beat has the weights of one step, as a word of the memory of `Linear`: by output fold, then
    input fold, and in a beat element (output lane * input lanes + input lane).
    """

    weights: ExternalWeights
    name, pins = "fixed_linear_external", ("data_in_0", "weight")
    has_late_weights = False

    def __post_init__(self) -> None:
        super().__post_init__()
        taken = self.weights.stream(self.vectors, self.source.lanes, self.lanes)
        object.__setattr__(self, "inputs", (self.source, taken))

    def golden(self, *data: Ints) -> Ints:
        number = self.source.format
        x = data[0].reshape(len(data[0]), self.vectors, -1)
        sums = self.weights.accumulate_given(x, data[1], number, self.source.lanes)
        codes = golden.cast(sums, self.weights.frac(number), self.format)
        return codes.reshape(-1, *self.output.shape)

    def ends(self) -> tuple[Ints, ...]:
        return row_ends(self.inputs)

    def twins(self) -> list[Twin]:
        return [ExternalLinearTwin(self.folds, self.source.lanes, *self.registers)]

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [_external(case, 3) for case in Linear.cases()[::2] if isinstance(case, Linear)]


def _external(layer: Linear, vectors: int) -> ExternalLinear:
    """`layer` for several vectors, with its weights from outside."""
    source = Stream((vectors, *layer.source.shape), layer.source.lanes, layer.source.format)
    return ExternalLinear(source, layer.weights.external(), layer.format, layer.lanes)


# -- from a node -----------------------------------------------------------------------------------


def encoded(tensor: Tensor, number: Fixed) -> Ints:
    """The codes of a parameter."""
    return number.encode(tensor.detach().double().cpu().numpy())


def weights_of(
    node: fx.Node, weight: Tensor, bias: Tensor | None, *, is_external: bool = False
) -> Weights:
    """Weight and bias in the formats that the node brings them to."""
    kind = ExternalWeights if is_external else Weights
    weight_format = formats.parameter_format(node, "weight")
    codes = encoded(weight, weight_format)
    if bias is None:
        return kind(codes, weight_format)
    bias_format = formats.parameter_format(node, "bias")
    return kind(codes, weight_format, encoded(bias, bias_format), bias_format)


def parameters_of(low: Lowerer, node: fx.Node) -> tuple[Tensor, Tensor | None]:
    """Weight and bias: of the module, or the attributes that the function is called with."""
    if node.op == "call_module":
        module = node_module(node)
        return module.weight, getattr(module, "bias", None)  # type: ignore[return-value]
    given = dict(named_arguments(node))
    found = [given.get(name) for name in ("weight", "bias")]
    if any(isinstance(n, fx.Node) and n.op != "get_attr" for n in found):
        raise low.refuse(node, "weights are computed", "Allowed: parameters of the model")
    weight, bias = (attribute(low.graph, n) if isinstance(n, fx.Node) else None for n in found)
    assert weight is not None, f"{node.name} has no weight"
    return weight, bias


def attribute(graph: MaseGraph, node: fx.Node) -> Tensor:
    """The tensor that a `get_attr` node reads."""
    found: Any = graph.model
    for part in str(node.target).split("."):
        found = getattr(found, part)
    assert isinstance(found, Tensor), f"{node.target} is no tensor"
    return found


MakeProduct = Callable[[Lowerer, str, Stream, Weights, Fixed], Component]
"""From the name of a node, its operand (one lane), weights and the format of its result."""
PRODUCTS: Registry[MakeProduct] = Registry("multiplier")
"""How products with constants may be formed."""


def _make_array(
    low: Lowerer, name: str, source: Stream, weights: Weights, number: Fixed
) -> Component:
    """A folded array of multipliers."""
    outputs, inputs = weights.weight.shape
    in_lanes, out_lanes = low.parallelism.of(name, inputs, outputs)
    return Linear(replace(source, lanes=in_lanes), weights, number, out_lanes)


PRODUCTS.register("array", _make_array)


def _add_external(
    low: Lowerer, node: fx.Node, value: Value, weights: ExternalWeights, number: Fixed
) -> Wire:
    """A folded array of multipliers whose weights come by a port."""
    how = low.parallelism.multiplier_of(node.name)
    if how != "array":
        told = "weights from outside are multiplied by an array: multiplier 'array'"
        raise low.refuse(node, f"multiplier '{how}' with external weights", told)
    outputs, inputs = weights.weight.shape
    in_lanes, out_lanes = low.parallelism.of(node.name, inputs, outputs)
    source = Stream(value.shape, in_lanes, low.stream(value).format)
    layer = ExternalLinear(source, weights, number, out_lanes)
    codes = weights.tiles(in_lanes, out_lanes)
    return low.add(node, layer, value, low.weight_port(node, layer.inputs[1], codes))


def product_maker(low: Lowerer, node: fx.Node) -> MakeProduct:
    """How `node` forms its products; refused where the name is none."""
    how = low.parallelism.multiplier_of(node.name)
    if how not in PRODUCTS:
        raise low.refuse(node, f"multiplier '{how}'", suggest(how, PRODUCTS).rstrip("."))
    return PRODUCTS[how]


@lowers("fixed_linear")
def lower_linear(low: Lowerer, node: fx.Node) -> Value:
    """A folded product; the order of a flat operand is that of the weights."""
    weight, bias = parameters_of(low, node)
    value = low.operand(node)
    if len(value.shape) > 1:
        value = low.arrange(node, value, row_major(value.shape), value.shape)
    else:
        weight = weight[:, torch.from_numpy(value.order)]  # the stream's order, not torch's
    source = Stream(value.shape, 1, low.stream(value).format)
    weights = weights_of(node, weight, bias, is_external=low.takes_weights(node))
    number = low.result_format(node, weights.span(source.format))
    make = product_maker(low, node)
    if isinstance(weights, ExternalWeights):
        wire = _add_external(low, node, value, weights, number)
    else:
        wire = low.add(node, make(low, node.name, source, weights, number), value)
    shape = (*value.shape[:-1], weight.shape[0])
    return Value(wire, shape, row_major(shape))


# -- by definition ---------------------------------------------------------------------------------


@exact_op("linear", "input weight bias")
def exact_linear(a: Arguments) -> Exact:
    """input @ weight.T + bias."""
    return with_bias(product(a["input"], a["weight"]), a.get("bias"), -1)
