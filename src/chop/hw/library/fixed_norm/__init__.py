"""Row norms in integers; the definition is in `chop.nn.quantizers.arithmetic.norm`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from torch import fx

from chop.errors import ConfigError
from chop.hw.arith import golden
from chop.hw.arith.golden import Fixed, Ints
from chop.hw.design.component import (
    Component,
    ComponentCost,
    Memory,
    Parameter,
    precision,
    register,
    result_precision,
)
from chop.hw.design.cycle_model import Twin
from chop.hw.design.samples import BYTE, COUNT, DOWN, WIDE, codes, stream
from chop.hw.design.stream import Stream, pack_words
from chop.hw.lower import Lowerer, Value, fixed_formats, lowers
from chop.hw.lower.row_ops import (
    add_rows,
    codes_of,
    constant,
    made,
    require_integers,
    row_operand,
)
from chop.hw.reference.exact import Exact, rounded
from chop.hw.reference.exact_ops import Arguments, along, exact_op, refuse_setting, with_bias
from chop.hw.streams.row_buffer import FrontTwin, RowTwin, row_cost
from chop.nn.quantizers import Integer
from chop.nn.quantizers.arithmetic.norm import (
    DEFAULT_RMS_EPS,
    Z_FRAC,
    eps_code,
    guard_bits,
    largest_u,
)
from chop.nn.quantizers.arithmetic.tables import root_table

WIDEST, MOST_BITS = 16, 62
ROOT_LATENCY, OUT_LATENCY = 19, 9
"""Registers from an element to the inverse root, and behind the row's buffer."""
R_WIDTH = 18
ONE = Fixed(2, 0)
"""The format of weights that are all 1."""


@dataclass(frozen=True, eq=False)
class Affine:
    """Weight and bias of each element of a row, as codes; None: no bias."""

    weight: Ints
    weight_format: Fixed
    bias: Ints | None = None
    bias_format: Fixed = ONE

    @classmethod
    def none(cls, size: int) -> Affine:
        """Return weights of 1 and no bias."""
        return cls(np.ones(size, dtype=np.int64), ONE)


@dataclass(frozen=True, eq=False)
class Norm(Component):
    """Normalised rows of the last dimension, times a weight plus a bias, cast to `format`."""

    source: Stream
    affine: Affine
    format: Fixed
    eps: float = 1e-5
    module = "fixed_norm"
    is_centred = True
    has_scales = True

    def __post_init__(self) -> None:
        if self.source.format.width > WIDEST or self.u_width > MOST_BITS:
            raise ConfigError(
                f"{self.kind}: an operand has up to {WIDEST} bits and its sums up to {MOST_BITS}, "
                f"got {self.source.format} in rows of {self.size}."
            )
        object.__setattr__(self, "inputs", (self.source,))
        object.__setattr__(self, "outputs", (replace(self.source, format=self.format),))

    @property
    def size(self) -> int:
        """Elements of a row."""
        return self.source.shape[-1]

    @property
    def beats(self) -> int:
        """Beats of a row."""
        return self.size // self.source.lanes

    @property
    def u_width(self) -> int:
        """Bits of the largest spread of a row, as the RTL computes it."""
        number = self.source.format
        integer = Integer(number.width, number.frac_width, number.is_signed)
        return max(largest_u(integer, self.size, self.eps, self.is_centred).bit_length(), 18)

    @property
    def _eps_code(self) -> int:
        return eps_code(self.eps, self.size, self.source.format.frac_width)

    def golden(self, *data: Ints) -> Ints:
        x, guard = data[0], guard_bits(self.size)
        total = x.sum(axis=-1, keepdims=True) * int(self.is_centred)
        q = self.size * (x * x).sum(axis=-1, keepdims=True) - total * total
        r, k = _inverse_roots((q << guard) + self._eps_code)
        z = ((self.size * x - total) * r) >> (np.maximum(k - guard // 2, 0) + 2)
        return golden.cast(*self._weighed(z), self.format)

    def _weighed(self, z: Ints) -> tuple[Ints, int]:
        """Return z * weight + bias, and its fractional bits."""
        one = self.affine
        frac = Z_FRAC + one.weight_format.frac_width
        product = golden.wide(z, golden.bits_of(z) + one.weight_format.width + 1) * one.weight
        if one.bias is None:
            return product, frac
        wide = max(frac, one.bias_format.frac_width)
        bits = golden.bits_of(product) + wide - frac
        bits = max(bits, one.bias_format.width + wide - one.bias_format.frac_width) + 2
        bias = golden.wide(one.bias, bits) << (wide - one.bias_format.frac_width)
        return (golden.wide(product, bits) << (wide - frac)) + bias, wide

    def parameters(self) -> Mapping[str, Parameter]:
        number = self.source.format
        return {
            "DATA_IN_0_PRECISION_0": number.width,
            "DATA_IN_0_IS_SIGNED": number.is_signed,
            "DATA_IN_0_TENSOR_SIZE_DIM_0": self.size,
            "DATA_IN_0_PARALLELISM_DIM_0": self.source.lanes,
            "IS_CENTRED": self.is_centred,
            "GUARD": guard_bits(self.size),
            "EPS": self._eps_code,
            "U_WIDTH": self.u_width,
            **precision("WEIGHT", self.affine.weight_format),
            "HAS_BIAS": self.affine.bias is not None,
            **precision("BIAS", self.affine.bias_format),
            **result_precision(self.format),
        }

    def memories(self) -> tuple[Memory, ...]:
        one = self.affine
        memories = [Memory("root", root_table(), 16, is_streamed=False)]
        memories.append(self._constants("weight", one.weight, one.weight_format))
        if one.bias is not None:
            memories.append(self._constants("bias", one.bias, one.bias_format))
        return tuple(memories)

    def _constants(self, name: str, values: Ints, number: Fixed) -> Memory:
        lanes = self.source.lanes
        words = pack_words(values.reshape(-1, lanes), number.width)
        return Memory(name, tuple(words), number.width * lanes)

    def twins(self) -> list[Twin]:
        return [FrontTwin(ROOT_LATENCY), RowTwin(self.beats, OUT_LATENCY)]

    def cost(self) -> ComponentCost:
        lanes, width = self.source.lanes, self.source.format.width
        growth = self.size.bit_length()
        number_width = width + growth + R_WIDTH + 6
        buffer = row_cost(self.beats, lanes * width, number_width)
        in_lanes = (ROOT_LATENCY + 4) * width + 2 * growth + 3 * R_WIDTH + 2 * self.format.width
        registers = lanes * (in_lanes + 20)
        registers += 8 * (width + growth) + 3 * self.u_width + 160
        multipliers = 3 * lanes + 3 + self.is_centred  # square, c * r, weight; root; sum * sum
        return super().cost() + buffer + ComponentCost(multipliers, register_bits=registers)


@register
@dataclass(frozen=True, eq=False)
class LayerNorm(Norm):
    """Layer norm over the last dimension: (x - mean) / sqrt(variance + eps) * weight + bias."""

    name = "fixed_layer_norm"

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(3, 8, lanes=2), _affine(8), BYTE),
            cls(stream(2, 6, lanes=6), _affine(6, weight=WIDE), Fixed(16, 11)),
            cls(stream(5), Affine.none(5), BYTE),
            cls(stream(3, 4, lanes=2, number=WIDE), _affine(4, bias=None), DOWN, 1e-3),
            cls(stream(2, 9, lanes=3, number=COUNT), _affine(9, weight=COUNT, bias=COUNT), BYTE),
            cls(stream(2, 2, number=Fixed(16, 9)), _affine(2, bias=Fixed(12, 30)), Fixed(9, 3)),
            cls(stream(3, 16, lanes=4), _affine(16), COUNT, 0.0),
            cls(stream(3, 1), _affine(1), BYTE),
            cls(stream(256, lanes=4), _affine(256), Fixed(12, 8)),  # z fills its register
            cls(stream(2, 2, number=Fixed(16, 9)), Affine.none(2), Fixed(16, 11), 0.0),
        ]


@register
@dataclass(frozen=True, eq=False)
class RmsNorm(Norm):
    """RMS norm over the last dimension: x / sqrt(mean of squares + eps) * weight."""

    name = "fixed_rms_norm"
    is_centred = False

    @classmethod
    def cases(cls) -> Sequence[Component]:
        return [
            cls(stream(3, 8, lanes=2), _affine(8, bias=None), BYTE),
            cls(stream(2, 3, lanes=3, number=COUNT), Affine.none(3), Fixed(10, 6), 0.0),
            cls(stream(2, 5, number=WIDE), _affine(5, weight=WIDE, bias=None), Fixed(16, 9)),
        ]


def _affine(size: int, weight: Fixed = BYTE, bias: Fixed | None = BYTE) -> Affine:
    """Return constants for tests."""
    if bias is None:
        return Affine(codes(weight, size), weight)
    return Affine(codes(weight, size), weight, codes(bias, size, seed=8), bias)


def _inverse_roots(u: Ints) -> tuple[Ints, Ints]:
    """Return (r, k): 1 / sqrt(u) is r * 2**(-18 - k), by table and a Newton step; 0 for 0."""
    entries = np.array(root_table(), dtype=np.int64)
    place = np.array([max(int(n).bit_length() - 1, 0) for n in u.reshape(-1)]).reshape(u.shape)
    k, odd = place >> 1, place & 1
    mantissa = (u >> np.maximum(2 * k - 16, 0)) << np.maximum(16 - 2 * k, 0)
    s = entries[(odd << 7) | ((mantissa >> (9 + odd)) & 127)]
    correction = ((3 << 34) - mantissa * ((s * s) >> 14)) >> 16
    return np.where(u > 0, (s * correction) >> 17, 0), k


# -- from a node -----------------------------------------------------------------------------------


@lowers("fixed_layer_norm")
def lower_layer_norm(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a layer normalisation over the last dimension."""
    return _lower(low, node, LayerNorm, low.setting(node, "eps", 1e-5))


@lowers("fixed_rms_norm")
def lower_rms_norm(low: Lowerer, node: fx.Node) -> Value:
    """Lower to a root-mean-square normalisation over the last dimension."""
    eps = low.setting(node, "eps", None)
    return _lower(low, node, RmsNorm, DEFAULT_RMS_EPS if eps is None else eps)


def _lower(low: Lowerer, node: fx.Node, kind: type[Norm], eps: float) -> Value:
    require_integers(low, node)
    value, source = row_operand(low, node)
    shape = tuple(low.setting(node, "normalized_shape", ()))
    if shape != value.shape[-1:]:
        allowed = f"Allowed: the last dimension, {value.shape[-1]}"
        raise low.refuse(node, f"normalized_shape = {shape}", allowed)
    affine = _affine_of(low, node, value.shape[-1])
    arguments = (source, affine, low.result_format(node), float(eps))
    return add_rows(low, node, value, made(low, node, kind, *arguments))


def _affine_of(low: Lowerer, node: fx.Node, size: int) -> Affine:
    """Return weight and bias in the formats that the node quantises them to."""
    weight, bias = (constant(low, node, name) for name in ("weight", "bias"))
    affine = Affine.none(size)
    if weight is not None:
        number = fixed_formats.parameter_format(node, "weight")
        affine = replace(affine, weight=codes_of(weight, number), weight_format=number)
    if bias is not None:
        number = fixed_formats.parameter_format(node, "bias")
        affine = replace(affine, bias=codes_of(bias, number), bias_format=number)
    return affine


# -- by definition ---------------------------------------------------------------------------------


def _one_over_root(u: int) -> tuple[int, int]:
    """Return (r, k): 1 / sqrt(u) is r * 2**(-18 - k), from the table's middle and a Newton step."""
    if u == 0:
        return 0, 0
    k = (u.bit_length() - 1) // 2
    mantissa = u * 65536 // 4**k
    unit = 512 if mantissa < 131072 else 1024  # 128 intervals from 1 to 2, 128 from 2 to 4
    middle = Fraction((2 * (mantissa // unit) + 1) * unit, 131072)
    square = 4 * 2**32 * middle.denominator // middle.numerator  # (2 * 65536 / sqrt(middle))**2
    s = (math.isqrt(square) + 1) // 2
    return s * ((3 * 2**34 - mantissa * (s * s // 2**14)) // 2**16) // 2**17, k


def _exact_rows(x: Exact, eps: float, frac_width: int, is_centred: bool) -> Exact:
    """Return each row of the last dimension normalised, with 16 fractional bits."""
    n = x.shape[-1]
    bits = max(16 - (max(n - 1, 1).bit_length() - 1), 0)
    half_guard = (bits + 1) // 2
    least = round(Fraction(eps) * n * n * Fraction(4) ** (frac_width + half_guard))
    codes = []
    for row in rounded(x, frac_width, "nearest_even").reshape(-1, n).tolist():
        total = sum(row) if is_centred else 0
        spread = n * sum(v * v for v in row) - total * total
        r, k = _one_over_root(spread * 4**half_guard + least)
        unit = 4 * 2 ** max(k - half_guard, 0)
        codes.append([(n * v - total) * r // unit for v in row])
    return Exact(np.array(codes, dtype=np.int64).reshape(x.shape), 16)


def _exact_norm(a: Arguments, eps: float, is_centred: bool) -> Exact:
    numbers = a.get("integer")
    if numbers is None:
        raise refuse_setting("arithmetic", "float", "'integer'")
    x = a["input"]
    if tuple(a["normalized_shape"]) != x.shape[-1:]:
        raise refuse_setting("normalized_shape", a["normalized_shape"], "the last dimension")
    z = _exact_rows(x, eps, numbers["input"].frac_width, is_centred)
    z = z if a.get("weight") is None else z * along(a["weight"], -1, len(x.shape))
    return with_bias(z, a.get("bias"), -1)


@exact_op("layer_norm", "input normalized_shape weight bias eps")
def exact_layer_norm(a: Arguments) -> Exact:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias, in the stated integers."""
    return _exact_norm(a, a.get("eps", 1e-5), is_centred=True)


@exact_op("rms_norm", "input normalized_shape weight eps")
def exact_rms_norm(a: Arguments) -> Exact:
    """Return x / sqrt(mean of squares + eps) * weight, in the stated integers."""
    eps = a.get("eps")
    return _exact_norm(a, 2.0**-23 if eps is None else eps, is_centred=False)
