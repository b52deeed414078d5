"""Values of a format as the bits they take: codes, a table of what they mean, and scales.

A tensor of at most 8 bits an element is `table[code] * scale`. Codes are the format's own (two's
complement, or sign, exponent and mantissa); where it has none, they count the values in order. The
layout in bytes is on the page "Packed checkpoints" of the documentation. A format declares its
codes by `values_by_code`, and blocks their `lowest_exponent`; without them, the values that a
tensor has are its table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.nn.quantizers.base import MOST_CODE_BITS, Quantizer
from chop.nn.quantizers.bits import pack_bits, unpack_bits
from chop.nn.quantizers.blocks import BlockQuantizer, join, split
from chop.nn.quantizers.powers import LAYOUTS, floor_log2, times_power
from chop.nn.quantizers.scale_integer import ScaleInteger

PART = 1 << 20
"""Elements that are looked up at once: indices take eight bytes each."""


@dataclass(frozen=True)
class Powers:
    """Powers of two, one for each tile: 2**(code + lowest), a code in `bits` bits."""

    codes: Tensor
    bits: int
    lowest: int
    tile: tuple[int, int]
    axis: int

    @property
    def values(self) -> Tensor:
        """What is stored: the codes."""
        return self.codes


@dataclass(frozen=True)
class Floats:
    """Scales as floats: one, one for each index of `axis`, or one for each group of a row."""

    values: Tensor
    axis: int | None = None
    group_size: int | None = None


@dataclass(frozen=True)
class Coded:
    """A tensor as codes; `codes` are bytes, and `table` has a row per index of `table_axis`."""

    codes: Tensor
    bits: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    table: Tensor
    scale: Powers | Floats | None = None
    table_axis: int | None = None


# -- encoding --------------------------------------------------------------------------------


def encode(values: Tensor, form: Quantizer, scale: Floats | None = None) -> Coded | None:
    """`values`, which are of the format `form`, as codes; None where that would lose a bit.

    `scale` are the scales of a `ScaleInteger`, as `scales_of` gives them.
    """
    bits = form.code_bits
    if bits > MOST_CODE_BITS or not values.is_floating_point() or values.numel() == 0:
        return None
    wide = values if values.dtype == torch.float64 else values.float()
    made = None
    if form.blocks is not None:
        made = _in_blocks(wide, form.blocks)
    elif form.scaled is None:
        made = _listed(wide, form, bits)
    elif scale is not None:
        made = _scaled(wide, form.scaled, scale)
    if made is None:
        return None
    codes, table, used, axis = made
    shape = tuple(values.shape)
    coded = Coded(pack_bits(codes, bits), bits, shape, values.dtype, table, used, axis)
    return coded if same_bits(decode(coded), values) else None


def scales_of(form: ScaleInteger, source: Tensor, stored: Tensor | None = None) -> Floats:
    """The scales by which `form` rounds `source`; `stored` are those the layer keeps."""
    wide = source if source.dtype == torch.float64 else source.float()
    axis = form.axis if form.granularity == "channel" else None
    group = form.group_size if form.granularity == "group" else None
    if stored is not None:
        kept = stored.detach().to(wide.dtype)
        return Floats(kept) if kept.dim() == 0 else Floats(kept, axis, group)
    spread = form.scales_of(wide)
    if spread.numel() == 1:
        return Floats(spread.reshape(()))
    if group is None:
        return Floats(spread.reshape(-1), axis)
    kept = spread[..., ::group]
    return Floats(kept if kept.numel() > kept.shape[-1] else kept.reshape(-1), None, group)


_Made = tuple[Tensor, Tensor, Powers | Floats | None, int | None]


def _in_blocks(values: Tensor, form: BlockQuantizer) -> _Made | None:
    rows, lowest = torch.atleast_2d(_last(values, form.axis)), form.lowest_exponent
    own = form.code_values()
    if lowest is None or own is None or not values.isfinite().all():
        return None
    table = own.to(values.dtype)
    blocks = split(rows, form.tile)
    exponent = _block_exponents(blocks.abs().amax((-3, -1), keepdim=True), table, lowest)
    parts = join(times_power(blocks, -exponent), rows.shape)
    codes = _look_up(_back(parts, form.axis, values), table)
    shared = exponent - lowest
    if codes is None or int(shared.max()) >= 2**form.shared_bits:
        return None
    packed = pack_bits(shared.to(torch.uint8), form.shared_bits)
    powers = Powers(packed, form.shared_bits, lowest, form.tile, form.axis)
    return codes, table, powers, None


def _block_exponents(largest: Tensor, table: Tensor, lowest: int) -> Tensor:
    """The smallest exponents at which the table reaches the largest magnitudes."""
    top = table[table.isfinite()].max()  # the lowest of two's complement has no positive
    exponent = floor_log2(largest) - floor_log2(top)
    exponent = exponent + (times_power(largest, -exponent) > top).to(exponent.dtype)
    return exponent.clamp(min=lowest)


def _last(values: Tensor, axis: int) -> Tensor:
    return values.movedim(axis, -1) if values.dim() > 1 else values


def _back(rows: Tensor, axis: int, like: Tensor) -> Tensor:
    return (rows.movedim(-1, axis) if like.dim() > 1 else rows).reshape(like.shape)


def _scaled(values: Tensor, form: ScaleInteger, scale: Floats) -> _Made | None:
    own = form.code_values()
    assert own is not None, f"{form} has codes"
    table = own.to(values.dtype)
    by = spread(scale, values.shape)
    steps = torch.where(by == 0, 0.0, values / by).round() + 0.0  # a scale of 0: all are 0
    codes = _look_up(steps, table)
    return None if codes is None else (codes, table, scale, None)


def _listed(values: Tensor, form: Quantizer, bits: int) -> _Made | None:
    """Codes in the format's table, else in that of the values there are."""
    made = _own_table(form, bits)
    codes = None if made is None else _look_up(values, made.to(values.dtype))
    if codes is not None and made is not None:
        return codes, made.to(values.dtype), None, None
    if form.code_values() is not None:
        return None
    axis = getattr(form, "axis", None)
    if isinstance(axis, int) and values.dim() > 1:
        return _listed_by_channel(values, bits, axis % values.dim())
    made = _values_there_are(values, bits)
    codes = None if made is None else _look_up(values, made)
    return None if codes is None or made is None else (codes, made, None, None)


def _own_table(form: Quantizer, bits: int) -> Tensor | None:
    """The values of the format's codes, or all its values and negative zero where there is room."""
    table, values = form.code_values(), form.value_set()
    if table is not None or values is None:
        return table
    missing = 2**bits - values.numel()
    return torch.cat([values, values.new_full((missing,), -0.0)])


def _listed_by_channel(values: Tensor, bits: int, axis: int) -> _Made | None:
    tables, codes = [], []
    for part in values.unbind(axis):
        table = _values_there_are(part, bits)
        found = None if table is None else _look_up(part, table)
        if table is None or found is None:
            return None
        tables.append(table)
        codes.append(found)
    return torch.stack(codes, axis), torch.stack(tables), None, axis


def _values_there_are(values: Tensor, bits: int) -> Tensor | None:
    """The distinct values in order, the last one again up to 2**bits; None if there are more."""
    found = _bits_of(values).unique().view(values.dtype)
    if found.numel() > 2**bits:
        return None
    return torch.cat([found, found[-1:].expand(2**bits - found.numel())])


def _look_up(values: Tensor, table: Tensor) -> Tensor | None:
    """The code of every value, None where one has none."""
    keys, order = _bits_of(table).sort(stable=True)
    found = torch.empty(values.numel(), dtype=torch.uint8, device=values.device)
    parts = zip(_bits_of(values).reshape(-1).split(PART), found.split(PART), strict=True)
    for wanted, codes in parts:
        place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
        if not torch.equal(keys[place], wanted):
            return None
        codes.copy_(order[place])
    return found.reshape(values.shape)


def _bits_of(values: Tensor) -> Tensor:
    return values.contiguous().view(LAYOUTS[values.dtype].integer)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are of one type and equal in every bit, NaN and negative zero too."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


# -- decoding --------------------------------------------------------------------------------


def decode(coded: Coded) -> Tensor:
    """Return the values. Memory beyond them is a small part of theirs."""
    values = _from_table(coded)
    if isinstance(coded.scale, Floats):
        values = values.mul_(spread(coded.scale, values.shape)).add_(0.0)  # a zero has no sign
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
    """The scales as a tensor that broadcasts with one of this shape."""
    if scale.group_size is not None:
        group = min(scale.group_size, shape[-1])
        return scale.values.repeat_interleave(group, -1)[..., : shape[-1]]
    if scale.axis is None:
        return scale.values
    axis = scale.axis % len(shape)
    return scale.values.reshape([-1 if d == axis else 1 for d in range(len(shape))])


def powers_of(coded: Coded) -> Tensor:
    """The power of two of every element, where tiles share one."""
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
