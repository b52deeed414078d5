"""Codes of a tensor: `table[code] * scale`, at most 8 bits per element.

A format declares its codes by `values_by_code`, and blocks their `lowest_exponent`. Without them
the table lists the values of the tensor in order. The page "Packed checkpoints" of the
documentation has the layout in bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.nn.quantizers.bits import pack_bits, unpack_bits
from chop.nn.quantizers.blocks import BlockQuantizer, join, split
from chop.nn.quantizers.powers import LAYOUTS, floor_log2, times_power
from chop.nn.quantizers.quantizer import MOST_CODE_BITS, Quantizer
from chop.nn.quantizers.scale_integer import ScaleInteger
from chop.nn.quantizers.scaled_blocks import ScaledBlocks, spread_tiles

FLOAT_BYTES = 4
PART = 1 << 20
"""Elements per lookup, to limit memory: an index has eight bytes."""


@dataclass(frozen=True)
class Powers:
    """Powers of two, one per tile: 2**(code + lowest), with codes of `bits` bits."""

    codes: Tensor
    bits: int
    lowest: int
    tile: tuple[int, int]
    axis: int

    @property
    def values(self) -> Tensor:
        """Stored tensor: the codes."""
        return self.codes


@dataclass(frozen=True)
class Floats:
    """Scales as floats: one, one per index of `axis`, or one per group of a row."""

    values: Tensor
    axis: int | None = None
    group_size: int | None = None


@dataclass(frozen=True)
class Tiles:
    """Real scales, one per tile: float32 numbers, or bytes with two levels of scales.

    The bytes are the tensor's scale as a float32, low byte first, then an E4M3 code per tile.
    """

    values: Tensor
    tile: tuple[int, int]
    axis: int

    @property
    def has_levels(self) -> bool:
        """True if `values` are bytes with two levels of scales."""
        return self.values.dtype == torch.uint8

    def levels(self) -> tuple[Tensor, Tensor | None]:
        """Return the stored scales in order, and the tensor's scale or None."""
        if not self.has_levels:
            return self.values, None
        whole = self.values[:FLOAT_BYTES].clone().view(torch.float32).reshape(())
        return self.values[FLOAT_BYTES:].view(torch.float8_e4m3fn).float(), whole


@dataclass(frozen=True)
class Coded:
    """A tensor as codes; `codes` are bytes, and `table` has a row per index of `table_axis`."""

    codes: Tensor
    bits: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    table: Tensor
    scale: Powers | Floats | Tiles | None = None
    table_axis: int | None = None


def encode(values: Tensor, form: Quantizer, scale: Floats | Tiles | None = None) -> Coded | None:
    """Return the codes of `values` in the format `form`; None if they would lose a bit.

    `scale` are the scales of a `ScaleInteger`, from `scales_of`, or of `ScaledBlocks`, from
    `tiles_of`. Blocks without given scales have those that `values` would be rounded by.
    """
    bits = form.code_bits
    if bits > MOST_CODE_BITS or not values.is_floating_point() or values.numel() == 0:
        return None
    wide = values if values.dtype == torch.float64 else values.float()
    if isinstance(form, ScaledBlocks):
        if not wide.isfinite().all():
            return None
        choices = (scale,) if scale is not None else (tiles_of(f, wide) for f in form.near(wide))
        coded = (_coded(values, bits, _in_tiles(wide, form, tiles)) for tiles in choices)
        return next((each for each in coded if each is not None), None)
    parts = None
    if form.blocks is not None:
        parts = _in_blocks(wide, form.blocks)
    elif form.scaled is None:
        parts = _listed(wide, form, bits)
    elif isinstance(scale, Floats):
        parts = _scaled(wide, form.scaled, scale)
    return _coded(values, bits, parts)


def _coded(values: Tensor, bits: int, parts: _Parts | None) -> Coded | None:
    """Return packed codes if they stand for exactly `values`."""
    if parts is None:
        return None
    codes, table, used, axis = parts
    packed, shape = pack_bits(codes, bits), tuple(values.shape)
    coded = Coded(packed, bits, shape, values.dtype, table, used, axis)
    return coded if same_bits(decode(coded), values) else None


def scales_of(form: ScaleInteger, source: Tensor, stored: Tensor | None = None) -> Floats:
    """Return the scales by which `form` rounds `source`; `stored` are those of the layer."""
    wide = source if source.dtype == torch.float64 else source.float()
    axis = form.axis if form.granularity == "channel" else None
    group = form.group_size if form.granularity == "group" else None
    if stored is not None:
        scales = stored.detach().to(wide.dtype)
        return Floats(scales) if scales.dim() == 0 else Floats(scales, axis, group)
    spread = form.scales_of(wide)
    if spread.numel() == 1:
        return Floats(spread.reshape(()))
    if group is None:
        return Floats(spread.reshape(-1), axis)
    scales = spread[..., ::group]
    return Floats(scales if scales.numel() > scales.shape[-1] else scales.reshape(-1), None, group)


def tiles_of(form: Quantizer, source: Tensor) -> Tiles | None:
    """Return the scales by which `form` rounds `source`; None if its blocks have no real scales."""
    if not isinstance(form, ScaledBlocks) or source.numel() == 0:
        return None
    scales, whole = form.scales_of(source if source.dtype == torch.float64 else source.float())
    values = scales.float().reshape(-1)
    if whole is not None:
        levels = (whole.float().reshape(1), values.to(torch.float8_e4m3fn))
        values = torch.cat([level.view(torch.uint8) for level in levels])
    return Tiles(values, form.tile, form.axis)


_Parts = tuple[Tensor, Tensor, Powers | Floats | Tiles | None, int | None]
"""Codes, table, scale and the axis of the table."""


def _in_blocks(values: Tensor, form: BlockQuantizer) -> _Parts | None:
    rows, lowest = torch.atleast_2d(_last(values, form.axis)), form.lowest_exponent
    own = form.code_values()
    if lowest is None or own is None or not values.isfinite().all():
        return None
    table = own.to(values.dtype)
    blocks = split(rows, form.tile)
    largest = blocks.abs().amax((-3, -1), keepdim=True)
    top = table[table.isfinite()].max()  # the lowest of two's complement has no positive
    exponent = floor_log2(largest) - floor_log2(top)
    exponent = exponent + (times_power(largest, -exponent) > top).to(exponent.dtype)
    exponent = exponent.clamp(min=lowest)
    elements = join(times_power(blocks, -exponent), rows.shape)
    codes = _look_up(_back(elements, form.axis, values), table)
    shared = exponent - lowest
    if codes is None or int(shared.max()) >= 2**form.shared_bits:
        return None
    packed = pack_bits(shared.to(torch.uint8), form.shared_bits)
    powers = Powers(packed, form.shared_bits, lowest, form.tile, form.axis)
    return codes, table, powers, None


def _in_tiles(values: Tensor, form: ScaledBlocks, tiles: Floats | Tiles | None) -> _Parts | None:
    own = form.code_values()
    if not isinstance(tiles, Tiles) or own is None:
        return None
    table = own.to(values.dtype)
    codes = _look_up(form.nearest(values, _tile_scales(tiles, values)), table)
    return None if codes is None else (codes, table, tiles, None)


def _tile_scales(tiles: Tiles, values: Tensor) -> Tensor:
    """Return the scale of every element, as the format computes it."""
    stored, whole = (None if t is None else t.to(values.dtype) for t in tiles.levels())
    assert stored is not None, "tiles have scales"
    scales = stored if whole is None else stored * whole
    return spread_tiles(scales, values.shape, tiles.tile, tiles.axis)


def _last(values: Tensor, axis: int) -> Tensor:
    return values.movedim(axis, -1) if values.dim() > 1 else values


def _back(rows: Tensor, axis: int, like: Tensor) -> Tensor:
    return (rows.movedim(-1, axis) if like.dim() > 1 else rows).reshape(like.shape)


def _scaled(values: Tensor, form: ScaleInteger, scale: Floats) -> _Parts | None:
    own = form.code_values()
    assert own is not None, f"{form} has codes"
    table = own.to(values.dtype)
    by = spread(scale, values.shape)
    steps = torch.where(by == 0, 0.0, values / by).round() + 0.0  # a scale of 0: all are 0
    codes = _look_up(steps, table)
    return None if codes is None else (codes, table, scale, None)


def _listed(values: Tensor, form: Quantizer, bits: int) -> _Parts | None:
    """Return codes in the format's table, else in a table of the tensor's values."""
    table, members = form.code_values(), form.value_set()
    if table is None and members is not None:  # all values, then negative zero
        table = torch.cat([members, members.new_full((2**bits - members.numel(),), -0.0)])
    codes = None if table is None else _look_up(values, table.to(values.dtype))
    if codes is not None and table is not None:
        return codes, table.to(values.dtype), None, None
    if form.code_values() is not None:
        return None
    axis = getattr(form, "axis", None) if values.dim() > 1 else None
    channels = (values,) if axis is None else values.unbind(axis)
    pairs = [pair for channel in channels if (pair := _own_codes(channel, bits)) is not None]
    if len(pairs) < len(channels):
        return None
    if axis is None:
        return (*pairs[0], None, None)
    by_channel, tables = zip(*pairs, strict=True)
    axis %= values.dim()
    return torch.stack(by_channel, axis), torch.stack(tables), None, axis


def _own_codes(values: Tensor, bits: int) -> tuple[Tensor, Tensor] | None:
    """Return codes and the table of distinct values; None if there are more than 2**bits."""
    distinct = _bits_of(values).unique().view(values.dtype)
    if distinct.numel() > 2**bits:
        return None
    table = torch.cat([distinct, distinct[-1:].expand(2**bits - distinct.numel())])
    codes = _look_up(values, table)
    return None if codes is None else (codes, table)


def _look_up(values: Tensor, table: Tensor) -> Tensor | None:
    """Return the code of every value; None if one is not in the table."""
    keys, order = _bits_of(table).sort(stable=True)
    codes = torch.empty(values.numel(), dtype=torch.uint8, device=values.device)
    parts = zip(_bits_of(values).reshape(-1).split(PART), codes.split(PART), strict=True)
    for bits, part in parts:
        place = torch.searchsorted(keys, bits).clamp(max=len(keys) - 1)
        if not torch.equal(keys[place], bits):
            return None
        part.copy_(order[place])
    return codes.reshape(values.shape)


def _bits_of(values: Tensor) -> Tensor:
    return values.contiguous().view(LAYOUTS[values.dtype].integer)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return True if dtype, shape and every bit are equal, NaN and negative zero too."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    parts = (t.reshape(-1).contiguous().view(torch.uint8) for t in (a, b))
    return torch.equal(*parts)


def decode(coded: Coded) -> Tensor:
    """Return the values, with little memory beyond them."""
    values = _from_table(coded)
    if isinstance(coded.scale, Floats):
        values = values.mul_(spread(coded.scale, values.shape)).add_(0.0)  # a zero has no sign
    elif isinstance(coded.scale, Tiles):
        values = values.mul_(_tile_scales(coded.scale, values))
    elif coded.scale is not None:
        values = _times_powers(values, coded.scale)
    return values.to(coded.dtype)


def _from_table(coded: Coded) -> Tensor:
    """Return the table's entry for every code, part by part."""
    table, axis = coded.table, coded.table_axis
    if axis is not None:
        codes = unpack_bits(coded.codes, coded.bits, math.prod(coded.shape)).reshape(coded.shape)
        rows = zip(table, codes.unbind(axis), strict=True)
        return torch.stack([row[part.long()] for row, part in rows], axis)
    values = torch.empty(math.prod(coded.shape), dtype=table.dtype, device=table.device)
    bytes_of_part = PART // 8 * coded.bits
    parts = zip(values.split(PART), coded.codes.split(bytes_of_part), strict=True)
    for place, data in parts:
        place.copy_(table[unpack_bits(data, coded.bits, len(place)).long()])
    return values.reshape(coded.shape)


def spread(scale: Floats, shape: torch.Size) -> Tensor:
    """Return the scales as a tensor that broadcasts with one of this shape."""
    if scale.group_size is not None:
        group = min(scale.group_size, shape[-1])
        return scale.values.repeat_interleave(group, -1)[..., : shape[-1]]
    if scale.axis is None:
        return scale.values
    axis = scale.axis % len(shape)
    return scale.values.reshape([-1 if d == axis else 1 for d in range(len(shape))])


def powers_of(coded: Coded) -> Tensor:
    """Return the power of two of every element."""
    assert isinstance(coded.scale, Powers), "has no powers"
    return _times_powers(torch.ones(coded.shape, dtype=coded.table.dtype), coded.scale)


def _times_powers(values: Tensor, powers: Powers) -> Tensor:
    rows = torch.atleast_2d(_last(values, powers.axis))
    down, across = (min(t, n) for t, n in zip(powers.tile, rows.shape[-2:], strict=True))
    blocks = split(rows, (down, across))  # a tile beyond the tensor would pad it
    tiles = (*blocks.shape[:-4], blocks.shape[-4], 1, blocks.shape[-2], 1)
    shared = unpack_bits(powers.codes, powers.bits, math.prod(tiles)).reshape(tiles)
    exponent = shared.to(LAYOUTS[values.dtype].integer) + powers.lowest
    return _back(join(times_power(blocks, exponent), rows.shape), powers.axis, values)
