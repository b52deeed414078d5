"""Row softmax in integers; the definition is in `chop.nn.quantizers.arithmetic.integer_softmax`."""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.component import (
    Component,
    ComponentCost,
    Memory,
    Parameter,
    register,
    result_precision,
)
from chop.hw.design.cycle_model import Twin
from chop.hw.design.process import Phase, Process
from chop.hw.design.samples import BIT, BYTE, COUNT, WIDE, stream
from chop.hw.design.stream import Stream, pack_words
from chop.hw.lower import Lowerer, Value, lowers
from chop.hw.lower.constants import parameter
from chop.hw.lower.engine import TRUTH
from chop.hw.lower.masks import added_mask, check_mask_readers
from chop.hw.lower.row_ops import add_rows, made, require_integers, row_operand
from chop.hw.reference.exact import Exact, rounded
from chop.hw.reference.exact_ops import LEAST, Arguments, exact_op, is_kept, refuse_setting
from chop.hw.streams.row_buffer import FrontTwin, RowTwin, row_cost
from chop.ir.node_arguments import named_arguments
from chop.ir.ops import OPS
from chop.nn.quantizers import Integer
from chop.nn.quantizers.arithmetic.integer_softmax import LONGEST_ROW, MASKED, exponential_tables
from chop.nn.quantizers.arithmetic.tables import RECIPROCAL_FRAC, reciprocal_table

WIDEST = 16
MAX_LATENCY, R_LATENCY, OUT_LATENCY = 2, 13, 3
"""Registers from an element to the maximum, from the exponentials to the reciprocal of their sum,
and behind the second buffer."""
EXP_WIDTH, R_WIDTH = 16, 18


class MaskedFrontTwin(FrontTwin):
    """A `FrontTwin` whose mask comes from `rom_source`: valid from the second cycle on."""

    name = "Masked front"

    def __init__(self, latency: int) -> None:
        super().__init__(latency)
        self.arguments = (latency,)

    def process(self) -> Process:
        return replace(super().process(), once=(Phase(),))


@register
@dataclass(frozen=True)
class Softmax(Component):
    """Softmax over the last dimension; elements that a mask excludes have no part."""

    source: Stream
    format: Fixed
    has_mask: bool = False
    is_mask_kept: bool = True
    """True if 1 in the mask includes an element, False if it excludes it."""
    constant: tuple[int, ...] = ()
    """Constant mask: a bit for each element, or for a part of them that is repeated."""
    module = "fixed_softmax"

    def __post_init__(self) -> None:
        if self.source.format.width > WIDEST or self.source.shape[-1] > LONGEST_ROW:
            raise ConfigError(
                f"fixed_softmax: an operand has up to {WIDEST} bits and rows of up to "
                f"{LONGEST_ROW}, got {self.source.format} and {self.source.shape[-1]}."
            )
        is_streamed = self.has_mask and not self.constant
        mask = (replace(self.source, format=TRUTH),) if is_streamed else ()
        object.__setattr__(self, "inputs", (self.source, *mask))
        object.__setattr__(self, "outputs", (replace(self.source, format=self.format),))

    @property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """Tables of the exponential: one, or two for the high and low bits of a difference."""
        number = self.source.format
        return exponential_tables(Integer(number.width, number.frac_width))

    @property
    def beats(self) -> int:
        """Beats of a row."""
        return self.source.shape[-1] // self.source.lanes

    def golden(self, *data: Ints) -> Ints:
        keep = np.ones(data[0].shape, dtype=bool)
        if self.has_mask:
            mask = np.resize(self.constant, self.source.shape) if self.constant else data[1]
            keep = np.broadcast_to(mask.astype(bool) == self.is_mask_kept, keep.shape)
        largest = np.where(keep, data[0], -(1 << WIDEST)).max(axis=-1, keepdims=True)
        e = np.where(keep, self._exponentials(np.maximum(largest - data[0], 0)), 0)
        return golden.cast(e * _reciprocals(e.sum(axis=-1, keepdims=True)), 33, self.format)

    def _exponentials(self, far: Ints) -> Ints:
        tables = [np.array(table, dtype=np.int64) for table in self.tables]
        if len(tables) == 1:
            return np.asarray(tables[0][np.minimum(far, 255)])
        return np.asarray((tables[0][far >> 8] * tables[1][far & 255] + (1 << 15)) >> 16)

    def parameters(self) -> Mapping[str, Parameter]:
        number = self.source.format
        return {
            "DATA_IN_0_PRECISION_0": number.width,
            "DATA_IN_0_IS_SIGNED": number.is_signed,
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.source.shape[-1],
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
            "HAS_MASK": self.has_mask,
            "IS_MASK_KEPT": self.is_mask_kept,
            "HAS_TWO_TABLES": len(self.tables) == 2,
            **result_precision(self.format),
        }

    def memories(self) -> tuple[Memory, ...]:
        names = zip(("exp", "fine"), (16, 17), self.tables, strict=False)
        tables = [_table(name, words, width) for name, width, words in names]
        bits = np.array(self.constant, dtype=np.int64).reshape(-1, self.source.lanes)
        mask = [Memory("data_in_1", tuple(pack_words(bits, 1)), self.source.lanes)]
        return (*tables, _table("reciprocal", reciprocal_table(), 16), *mask[: len(bits)])

    def twins(self) -> list[Twin]:
        exp_latency = 3 + len(self.tables)
        front = FrontTwin(MAX_LATENCY, len(self.inputs))
        return [
            MaskedFrontTwin(MAX_LATENCY) if self.constant else front,
            RowTwin(self.beats, exp_latency + R_LATENCY),
            RowTwin(self.beats, OUT_LATENCY),
        ]

    def cost(self) -> ComponentCost:
        lanes, width = self.source.lanes, self.source.format.width
        buffers = row_cost(self.beats, lanes * (width + 1), width)
        buffers += row_cost(self.beats, lanes * EXP_WIDTH, R_WIDTH)
        in_lanes = 3 * (width + 1) + 9 * EXP_WIDTH + R_WIDTH + 2 * self.format.width
        registers = lanes * in_lanes + 2 * width + 160
        multipliers = lanes * len(self.tables) + 2  # two of the reciprocal
        return super().cost() + buffers + ComponentCost(multipliers, register_bits=registers)

    @classmethod
    def cases(cls) -> Sequence[Component]:
        part = Fixed(8, 7, is_signed=False)
        return [
            cls(stream(3, 8, lanes=2), part),
            cls(stream(2, 6, lanes=6), Fixed(8, 7), has_mask=True),
            cls(stream(5), Fixed(10, 9)),
            cls(stream(3, 4, lanes=2, number=WIDE), Fixed(16, 15, is_signed=False), has_mask=True),
            cls(stream(2, 9, lanes=3, number=COUNT), Fixed(6, 5, rounding="floor")),
            cls(stream(2, 3, number=Fixed(16, 9)), part),
            cls(stream(2, 4, lanes=4, number=BIT), part, has_mask=True, is_mask_kept=False),
            cls(stream(3, 1, number=BYTE), part, has_mask=True),
            cls(stream(2, 4, lanes=2), part, has_mask=True, constant=(1, 0, 0, 0, 0, 1, 1, 1)),
        ]


def _table(name: str, words: tuple[int, ...], width: int) -> Memory:
    return Memory(name, words, width, is_streamed=False, parameter=f"{name.upper()}_INIT_FILE")


def _reciprocals(total: Ints) -> Ints:
    """Return 2**33 / total by table and one Newton step; 0 for 0."""
    entries = np.array(reciprocal_table(), dtype=np.int64)
    place = np.array([max(int(t).bit_length() - 1, 0) for t in total.reshape(-1)])
    place = place.reshape(total.shape)
    mantissa = (total << 16) >> place
    r = entries[(mantissa >> 8) & 255]
    correction = ((1 << RECIPROCAL_FRAC) - mantissa * r) >> 15
    return np.where(total > 0, (r * correction) >> place, 0)


# -- from a node -----------------------------------------------------------------------------------


@lowers("fixed_softmax")
def lower_softmax(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a softmax over the last dimension."""
    require_integers(low, node)
    value, source = row_operand(low, node)
    dim = low.setting(node, "dim", None)
    if dim not in (-1, len(value.shape)):  # a tensor of the graph has a batch dimension before
        raise low.refuse(node, f"dim = {dim}", "Allowed: the last dimension")
    number = low.result_format(node)
    mask = _mask_of(low, node, value)
    if not isinstance(mask, Value):
        return add_rows(low, node, value, made(low, node, Softmax, source, number, *mask))
    kind = MASKS[low.op(low.operands(node)[0]).name]
    component = made(low, node, Softmax, source, number, True, kind.is_kept)
    return replace(value, wire=low.add(node, component, value, mask))


def _mask_of(low: Lowerer, node: fx.Node, value: Value) -> Value | tuple[Any, ...]:
    """Return the mask of a softmax: a stream, or the settings of one that is constant or absent."""
    (filled,) = low.operands(node)
    if low.op(filled) is OPS["add"]:
        added = added_mask(low, filled)
        return (
            () if added is None else (True, False, _constant(low, filled, added.is_masked, value))
        )
    kind = MASKS.get(low.op(filled).name)
    if kind is None:
        return ()
    source = low.operands(filled)[kind.mask]
    tensor = parameter(low, source) if source not in low.values else None
    if tensor is not None:
        return True, kind.is_kept, _constant(low, filled, tensor, value)
    return _mask(low, filled, low.operand(filled, kind.mask), value)


def _mask(low: Lowerer, filled: fx.Node, mask: Value, value: Value) -> Value:
    """Return the mask of `filled`, in the shape of `value`."""
    shape = (1,) * (len(value.shape) - len(mask.shape)) + mask.shape
    place = np.empty_like(mask.order)
    place[mask.order] = np.arange(len(place))
    try:
        places = np.broadcast_to(place.reshape(shape), value.shape).reshape(-1)
    except ValueError:
        what = f"shapes {value.shape} and {mask.shape}"
        raise low.refuse(filled, what, "Allowed: a mask that broadcasts") from None
    if np.array_equal(places, np.arange(len(place))):
        return mask
    wire = low.gather(filled, mask, places, value.shape)
    return Value(wire, value.shape, np.arange(len(places)))


def _constant(low: Lowerer, filled: fx.Node, mask: Tensor, value: Value) -> tuple[int, ...]:
    """Return a constant mask: the bits of the first rows of `value`, until it repeats."""
    dims = len(value.shape)
    whole = mask[0] if mask.dim() > dims and len(mask) == 1 else mask
    try:
        bits = np.broadcast_to(whole.bool().cpu().numpy(), value.shape).reshape(-1)
    except ValueError:
        what = f"shapes {value.shape} and {tuple(mask.shape)}"
        raise low.refuse(
            filled, what, "Allowed: a mask that broadcasts, for all of a batch"
        ) from None
    sizes = (math.prod(value.shape[k:]) for k in range(dims - 1, -1, -1))
    period = next(n for n in sizes if np.array_equal(np.resize(bits[:n], bits.shape), bits))
    return tuple(int(bit) for bit in bits[:period])


class Masking(NamedTuple):
    """Op that sets masked elements to minus infinity: its operands, and the meaning of 1."""

    mask: int
    numbers: int
    fill: str
    is_kept: bool


MASKS = {"masked_fill": Masking(1, 0, "value", False), "where": Masking(0, 1, "other", True)}


@lowers("mask", is_wiring=True)
def lower_mask(low: Lowerer, node: fx.Node) -> Value:
    """Lower to the numbers themselves; softmax, their only reader, takes the mask."""
    kind = MASKS[low.op(node).name]
    fill = dict(named_arguments(node)).get(kind.fill)
    if not isinstance(fill, int | float) or fill > MASKED:
        allowed = "Allowed: -2**100 or less, as -inf and torch.finfo(dtype).min are"
        raise low.refuse(node, f"{kind.fill} = {fill}", allowed)
    check_mask_readers(low, node)
    if len(low.operands(node)) < 2:
        raise low.refuse(node, "a mask that is no tensor", "Allowed: an input, or a buffer")
    return low.operand(node, kind.numbers)


# -- by definition ---------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _exp_entries(one: int, step: int, frac_width: int) -> list[int]:
    """Return one * exp(-i * step * 2**-frac_width) for i from 0 to 255, rounded, to 40 digits."""
    with decimal.localcontext() as context:
        context.prec = 40
        unit = decimal.Decimal(step) * decimal.Decimal(2) ** -frac_width
        values = [decimal.Decimal(one) * (-unit * i).exp() for i in range(256)]
    return [int(x.to_integral_value(decimal.ROUND_HALF_EVEN)) for x in values]


@functools.lru_cache(maxsize=1 << 16)
def _parts(far: tuple[int, ...], width: int, frac_width: int) -> tuple[int, ...]:
    """Return 65535 * exp(-d) for the differences of a row."""
    if width <= 8 or frac_width <= 4:
        entries = _exp_entries(65535, 1, frac_width)
        return tuple(entries[d] if d < 256 else entries[255] for d in far)
    coarse, fine = _exp_entries(65535, 256, frac_width), _exp_entries(65536, 1, frac_width)
    return tuple((coarse[d // 256] * fine[d % 256] + 32768) // 65536 for d in far)


def _one_over(total: int) -> int:
    """Return 2**33 / total by the reciprocal at the middle of its 256th, and a Newton step."""
    power = 1 << (total.bit_length() - 1)
    mantissa = total * 65536 // power
    middle = Fraction(2 * (mantissa // 256) + 1, 512)  # of the interval, from 1 to 2
    r = round(65536 / middle)
    return r * ((2**33 - mantissa * r) // 2**15) // power


@exact_op("softmax", "input dim _stacklevel dtype")
def exact_softmax(a: Arguments) -> Exact:
    """Return exp(x - max) over their sum, over the last dimension, in the stated integers."""
    formats = a.get("integer")
    if formats is None:
        raise refuse_setting("arithmetic", "float", "'integer'")
    x, number, operand = a["input"], formats["input"], formats["given"]
    if a.get("dim") not in (-1, len(x.shape) - 1):
        raise refuse_setting("dim", a.get("dim"), "the last dimension")
    rows = rounded(x, number.frac_width, "nearest_even").reshape(-1, x.shape[-1]).tolist()
    keep = is_kept(operand).reshape(-1, x.shape[-1]).tolist()
    codes = [_exact_row(*pair, number) for pair in zip(rows, keep, strict=True)]
    return Exact(np.array(codes, dtype=np.int64).reshape(x.shape), 33)


def _exact_row(row: list[int], keep: list[bool], number: Any) -> list[int]:
    """Return one row with 33 fractional bits; masked elements are 0."""
    unmasked = [v for v, is_in in zip(row, keep, strict=True) if is_in]
    if not unmasked:
        return [0] * len(row)
    parts = _parts(tuple(max(unmasked) - v for v in unmasked), number.width, number.frac_width)
    r = _one_over(sum(parts))
    results = iter(parts)
    return [next(results) * r if is_in else 0 for is_in in keep]


@exact_op("masked_fill", "input mask value")
def exact_masked_fill(a: Arguments) -> Exact:
    """Return the input, with a number below all others where the mask is set."""
    return _filled(a["input"], a["mask"], a.get("value"), is_kept=False)


@exact_op("where", "condition input fill")
def exact_where(a: Arguments) -> Exact:
    """Return the input, with a number below all others where the condition is false."""
    return _filled(a["input"], a["condition"], a.get("fill"), is_kept=True)


def _filled(x: Exact, mask: Any, fill: Any, is_kept: bool) -> Exact:
    """Return `x` with `fill` where the mask is set; minus infinity is `LEAST`."""
    if not isinstance(fill, int | float) or not fill <= -(2.0**100):
        raise refuse_setting("value", fill, "-2**100 or less")
    number = LEAST if math.isinf(fill) else int(fill)
    least = number * x.divisor << x.frac_width
    is_set = np.asarray(mask, dtype=bool)  # of torch's truth values
    return x.take(np.where(is_set == is_kept, x.codes.astype(object), least))
