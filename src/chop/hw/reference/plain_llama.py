"""Decode step of an integer Llama in Python integers, written from its definition.

It shares no code with the PyTorch model or with the engine. Weights are plain data, such as JSON
has it: a matrix is a list of rows, a row a list of blocks, a block (mantissas, exponent).
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

Vector = list[int]
Block = tuple[Sequence[int], int]
Data = Mapping[str, Any]


def to_bits(code: int, dropped: int, width: int) -> int:
    """Return code / 2**dropped, rounded half to even and saturated to `width` bits."""
    high = (1 << (width - 1)) - 1
    return min(max(round(Fraction(code, 1 << dropped)), -high - 1), high)


def to_16_bits(code: int, dropped: int) -> int:
    """Return code / 2**dropped, rounded half to even and saturated to 16 bits.

    >>> [to_16_bits(code, 1) for code in (1, 3, -3, 1 << 30)]
    [0, 2, -2, 32767]
    """
    return to_bits(code, dropped, 16)


def to_blocks(codes: Sequence[int], size: int, width: int = 8) -> list[Block]:
    """Return 16-bit codes as blocks of mantissas of `width` bits.

    >>> to_blocks([1, 254, -3, 4], 2)
    [([0, 127], 1), ([-3, 4], 0)]
    """
    high, blocks = 2 ** (width - 1) - 1, list[Block]()
    for start in range(0, len(codes), size):
        part = codes[start : start + size]
        exponent = max(max(abs(code) for code in part).bit_length() - (width - 1), 0)
        mantissas = [round(Fraction(code, 1 << exponent)) for code in part]
        blocks.append(([min(max(m, -high), high) for m in mantissas], exponent))
    return blocks


def dot(row: Sequence[Block], x: Sequence[Block]) -> int:
    """Return the exact product of two vectors in blocks."""
    return sum(
        sum(map(int.__mul__, w, m)) << (w_exponent + exponent)
        for (w, w_exponent), (m, exponent) in zip(row, x, strict=True)
    )


def inverse_root(u: int) -> tuple[int, int]:
    """Return (r, k) with 1 / sqrt(u) = r * 2**(-18 - k): a table of 256 and a Newton step."""
    if u == 0:
        return 0, 0
    place = u.bit_length() - 1
    k = place // 2
    mantissa = (u << 16) >> (2 * k)
    odd = place % 2
    middle = Fraction(2 * (mantissa >> (9 + odd)) + 1, 256) * (1 << odd)
    s = _root_of(Fraction(1 << 32) / middle)
    correction = ((3 << 34) - mantissa * (s * s >> 14)) >> 16
    return s * correction >> 17, k


def _root_of(x: Fraction) -> int:
    """Return the square root, rounded half up."""
    with decimal.localcontext(prec=60):
        exact = (decimal.Decimal(x.numerator) / x.denominator).sqrt()
        return int(exact.to_integral_value(decimal.ROUND_HALF_UP))


def norm_constants(data: Data, size: int) -> tuple[int, int]:
    """Return guard bits, even and as many as let the sum of a row stay below 2**62, and eps."""
    guard = max(16 - (max(size - 1, 1).bit_length() - 1), 0)
    guard += guard % 2
    exact = Fraction(data["eps"]) * size**2 * 4 ** data["hidden"]
    most = size**2 * 4 ** (data["residual_width"] - 1)
    while most * Fraction(2) ** guard + round(exact * Fraction(2) ** guard) >= 1 << 62:
        guard -= 2
    return guard, round(exact * Fraction(2) ** guard)


def rms_norm(hidden: Sequence[int], weight: Data, data: Data, frac: int) -> list[Block]:
    """Return the normalised and weighted vector in blocks."""
    size, guard, eps = len(hidden), *norm_constants(data, len(hidden))
    squares = sum(code * code for code in hidden) * Fraction(2) ** guard
    r, k = inverse_root(size * (squares.numerator // squares.denominator) + eps)
    z = [(size * code * r) >> (max(k - guard // 2, 0) + 2) for code in hidden]
    dropped = 16 + weight["frac"] - frac
    scaled = [to_16_bits(a * b, dropped) for a, b in zip(z, weight["codes"], strict=True)]
    return to_blocks(scaled, data["block"])


def product(matrix: Data, x: Sequence[Block], x_frac: int, frac: int, width: int = 16) -> Vector:
    """Return the product of a matrix and a vector as codes of `width` bits."""
    dropped = matrix["frac"] + x_frac - frac
    return [to_bits(dot(row, x), dropped, width) for row in matrix["rows"]]


def rotate(codes: Sequence[int], rotation: Sequence[Sequence[int]]) -> Vector:
    """Rotate the pairs of each head; `rotation` has a cosine and a sine for each pair."""
    rotated: Vector = []
    for pair in range(len(codes) // 2):
        a, b = codes[2 * pair], codes[2 * pair + 1]
        cos, sin = rotation[pair % len(rotation)]
        rotated += [to_16_bits(a * cos - b * sin, 14), to_16_bits(b * cos + a * sin, 14)]
    return rotated


@functools.cache
def exp_entry(one: int, distance: int, frac: int) -> int:
    """Return one * exp(-distance * 2**-frac), rounded."""
    with decimal.localcontext(prec=60):
        x = decimal.Decimal(one) * (-decimal.Decimal(distance) / (1 << frac)).exp()
        return int(x.to_integral_value(decimal.ROUND_HALF_EVEN))


def exponential(distance: int, frac: int) -> int:
    """Return 65535 * exp(-d) as the product of two tables."""
    coarse = exp_entry(65535, distance // 256 * 256, frac)
    return (coarse * exp_entry(65536, distance % 256, frac) + 32768) // 65536


def reciprocal(total: int) -> int:
    """Return 2**33 / total by a table of 256 and a Newton step."""
    power = 1 << (total.bit_length() - 1)
    mantissa = total * 65536 // power
    r = round(65536 / Fraction(2 * (mantissa // 256) + 1, 512))
    return r * ((2**33 - mantissa * r) // 2**15) // power


def silu(code: int, lines: Data) -> int:
    """Return SiLU of a code on its straight line."""
    place = code % 65536
    line, along = divmod(place, 1 << lines["low_bits"])
    exact = lines["bases"][line] + lines["slopes"][line] * along
    return to_16_bits(exact, lines["dropped"])


class PlainLlama:
    """Decoder with a growing cache; `step` computes one token."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.keys: list[list[list[Block]]] = [[] for _ in data["layers"]]
        self.values: list[list[list[Block]]] = [[] for _ in data["layers"]]

    def step(self, token: int) -> Vector:
        """Return the logit codes after `token`."""
        data, position = self.data, len(self.keys[0])
        hidden = list(data["embedding"][token])
        for index, layer in enumerate(data["layers"]):
            hidden = self._layer(index, layer, hidden, data["rotations"][position])
        x = rms_norm(hidden, data["norm"], data, data["x"])
        return product(data["head"], x, data["x"], data["logits"])

    def _layer(self, index: int, layer: Data, hidden: Vector, rotation: Any) -> Vector:
        fracs, block = layer["fracs"], self.data["block"]
        x = rms_norm(hidden, layer["norm_1"], self.data, fracs["x_1"])
        query, key, value = (
            product(layer[name], x, fracs["x_1"], fracs[name]) for name in ("query", "key", "value")
        )
        width = self.data["cache_width"]
        self.keys[index].append(to_blocks(rotate(key, rotation), block, width))
        self.values[index].append(to_blocks(value, block, width))
        attended = self._attend(index, layer, to_blocks(rotate(query, rotation), block))
        hidden = self._add(hidden, layer["output"], to_blocks(attended, block), fracs["attended"])
        x = rms_norm(hidden, layer["norm_2"], self.data, fracs["x_2"])
        middle = to_blocks(self._gated(layer, x), block)
        return self._add(hidden, layer["down"], middle, fracs["middle"])

    def _add(self, hidden: Vector, matrix: Data, x: list[Block], frac: int) -> Vector:
        width = self.data["residual_width"]
        out = product(matrix, x, frac, self.data["hidden"], width)
        return [to_bits(a + b, 0, width) for a, b in zip(hidden, out, strict=True)]

    def _gated(self, layer: Data, x: list[Block]) -> Vector:
        fracs, frac = layer["fracs"], self.data["gate"]
        gate = product(layer["gate"], x, fracs["x_2"], frac)
        up = product(layer["up"], x, fracs["x_2"], fracs["up"])
        dropped = frac + fracs["up"] - fracs["middle"]
        return [
            to_16_bits(silu(g, self.data["silu"]) * u, dropped)
            for g, u in zip(gate, up, strict=True)
        ]

    def _attend(self, index: int, layer: Data, query: list[Block]) -> Vector:
        heads, blocks = self.data["heads"], len(query) // self.data["heads"]
        group, attended = heads // self.data["kv_heads"], []
        for head in range(heads):
            own = slice(head // group * blocks, (head // group + 1) * blocks)
            keys = [row[own] for row in self.keys[index]]
            values = [row[own] for row in self.values[index]]
            part = query[head * blocks : (head + 1) * blocks]
            attended += self._attend_head(layer["fracs"], part, keys, values)
        return attended

    def _attend_head(self, fracs: Data, query: list[Block], keys: Any, values: Any) -> Vector:
        frac = self.data["scores"]
        dropped = fracs["query"] + fracs["key"] - frac
        scores = [to_16_bits(dot(key, query), dropped) for key in keys]
        shares = [exponential(max(scores) - score, frac) for score in scores]
        codes = [[m << e for mantissas, e in row for m in mantissas] for row in values]
        sums = [sum(map(int.__mul__, shares, column)) for column in zip(*codes, strict=True)]
        r, dropped = reciprocal(sum(shares)), 33 + fracs["value"] - fracs["attended"]
        return [to_16_bits(total * r, dropped) for total in sums]
