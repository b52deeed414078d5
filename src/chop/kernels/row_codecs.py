"""Codecs that store rows of numbers as codes of a number format.

Each row is encoded alone, so its values do not depend on other rows. To store another format in
fewer bytes, add a codec and its row to `CODECS`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from chop.kernels.ops import pack
from chop.kernels.packed_formats import GROUP_SIZES, PACKED_FORMATS, check_group_size
from chop.nn.quantizers import Quantizer, make_quantizer, parse_format

Parts = tuple[Tensor, ...]
FLOAT = "float"
EXACT = (torch.bfloat16, torch.float16, torch.float32)
"""Storage types of formats without codes: the first that is exact is used."""


class Codec(Protocol):
    """Encoder of tensors whose last dimension is a row; parts have the other dimensions."""

    def encode(self, x: Tensor) -> Parts:
        """Return the parts of `x`."""

    def decode(self, parts: Parts, columns: int, dtype: torch.dtype) -> Tensor:
        """Return the values of parts."""


@dataclass(frozen=True)
class FloatCodec:
    """Unchanged values."""

    def encode(self, x: Tensor) -> Parts:
        return (x,)

    def decode(self, parts: Parts, columns: int, dtype: torch.dtype) -> Tensor:
        return parts[0].to(dtype)


@dataclass(frozen=True)
class PackedCodec:
    """Codes and scales of a packed format, in groups of the row."""

    format: str
    group_size: int = 32

    def __post_init__(self) -> None:
        check_group_size(self.group_size, "cache")

    def encode(self, x: Tensor) -> Parts:
        packed = pack(x, self.format, self.group_size)
        return packed.codes, packed.scales

    def decode(self, parts: Parts, columns: int, dtype: torch.dtype) -> Tensor:
        codes, scales = (part.contiguous() for part in parts)
        layout = (self.format, self.group_size, columns)
        values: Tensor = torch.ops.mase.unpack(codes, scales, *layout, dtype)
        return values


@dataclass(frozen=True)
class IntegerCodec:
    """Symmetric integers of 4 or 8 bits with one scale (bfloat16) per row."""

    bits: int

    def encode(self, x: Tensor) -> Parts:
        high = 2 ** (self.bits - 1) - 1
        largest = x.float().abs().amax(-1, keepdim=True)
        scale = (largest / high).clamp(min=torch.finfo(torch.float32).tiny).bfloat16()
        whole = (x.float() / scale.float()).round().clamp(-high, high).to(torch.int8)
        if self.bits == 8:
            return whole, scale
        if whole.shape[-1] % 2:
            whole = torch.nn.functional.pad(whole, (0, 1))
        return (whole[..., 0::2] & 15) | (whole[..., 1::2] << 4), scale

    def decode(self, parts: Parts, columns: int, dtype: torch.dtype) -> Tensor:
        codes, scale = parts
        if self.bits == 4:
            low = (codes << 4) >> 4  # sign of the low half
            codes = torch.stack((low, codes >> 4), -1).flatten(-2)[..., :columns]
        return (codes.float() * scale.float()).to(dtype)


@dataclass(frozen=True)
class TableCodec:
    """Indices into the values of a format: a byte for up to 256 values, half for up to 16."""

    quantizer: Quantizer

    def encode(self, x: Tensor) -> Parts:
        table = value_table(self.quantizer).to(x.device)
        codes = torch.searchsorted(table, self.quantizer(x.float())).to(torch.uint8)
        if len(table) > 16:
            return (codes,)
        if codes.shape[-1] % 2:
            codes = torch.nn.functional.pad(codes, (0, 1))
        return (codes[..., 0::2] | (codes[..., 1::2] << 4),)

    def decode(self, parts: Parts, columns: int, dtype: torch.dtype) -> Tensor:
        (codes,) = parts
        table = value_table(self.quantizer).to(device=codes.device, dtype=dtype)
        if len(table) <= 16:
            codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)[..., :columns]
        return table[codes.int()]


@dataclass(frozen=True)
class ValueCodec:
    """Values of any number format, in the narrowest type that holds them exactly."""

    quantizer: Quantizer

    def encode(self, x: Tensor) -> Parts:
        rows = x.float().reshape(-1, x.shape[-1])
        whole = is_row_wise(self.quantizer, x.shape[-1])
        values = self.quantizer(rows) if whole else torch.stack([*map(self.quantizer, rows)])
        kind = next((k for k in EXACT if torch.equal(values.to(k).float(), values)), torch.float32)
        return (values.view(x.shape).to(kind),)

    def decode(self, parts: Parts, columns: int, dtype: torch.dtype) -> Tensor:
        return parts[0].to(dtype)


@functools.lru_cache(maxsize=64)
def value_table(quantizer: Quantizer) -> Tensor:
    """Return the format's values of all bfloat16 numbers, in order."""
    numbers = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float()
    return torch.unique(quantizer(numbers[numbers.isfinite()]))


@functools.lru_cache(maxsize=64)
def is_row_wise(quantizer: Quantizer, columns: int) -> bool:
    """Return True if rows of different magnitudes are quantised independently."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(3, columns, generator=draw) * torch.tensor([[1.0], [100.0], [0.01]])
    return torch.equal(quantizer(rows), torch.stack([quantizer(row) for row in rows]))


def _of_quantizer(quantizer: Quantizer) -> Codec:
    """Return a packed codec if there is one, a table for few values, else floats."""
    layout, size = quantizer.packed_layout, quantizer.group_columns
    if layout is not None and layout.name in PACKED_FORMATS and size in GROUP_SIZES:
        return PackedCodec(layout.name, size)
    if not quantizer.has_range and quantizer.bits <= 8 and is_row_wise(quantizer, 1):
        probe = torch.tensor([1.0, 100.0, 0.01])
        alone = torch.stack([quantizer(x) for x in probe])
        if torch.equal(quantizer(probe), alone) and len(value_table(quantizer)) <= 256:
            return TableCodec(quantizer)
    return ValueCodec(quantizer)


CODECS: dict[str, Codec] = {
    FLOAT: FloatCodec(),
    "int8": IntegerCodec(8),
    "int4": IntegerCodec(4),
    **{name: PackedCodec(name) for name in PACKED_FORMATS},
}
"""Codecs by name; any other format is parsed as a spelling."""


def codec_of(format: str | Mapping[str, Any] | Quantizer, where: str = "cache") -> Codec:
    """Return the codec of a format: a spelling, a config with its settings, or a quantizer.

    "int8" and "int4" have one scale per row.

    >>> codec_of("mxint4/16")
    PackedCodec(format='mxint4', group_size=16)
    """
    if isinstance(format, Quantizer):
        return _of_quantizer(format)
    if isinstance(format, Mapping):
        settings = dict(format)
        name = str(settings.pop("name", ""))
        if name in PACKED_FORMATS and settings.keys() == {"group_size"}:
            return PackedCodec(name, **settings)
        return _of_quantizer(make_quantizer(name, settings, where=where))
    return CODECS[format] if format in CODECS else _of_quantizer(parse_format(format, where))
