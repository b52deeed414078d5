"""Packed tensors of a checkpoint, with the bits of their formats.

A packed checkpoint has, instead of a tensor `w`, its codes `w:codes` and its scales `w:scales`, if
any. Equal tables of values are stored once (`table:0`). The record of `w` under `packed` describes
the layout; the page "Packed checkpoints" of the documentation is its reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from chop.errors import CheckpointError
from chop.files import shown
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.bits import bytes_of, pack_bits
from chop.nn.quantizers.codes import (
    FLOAT_BYTES,
    Coded,
    Floats,
    Powers,
    Tiles,
    decode,
    encode,
    same_bits,
)

Record = dict[str, Any]
Records = dict[str, Record]
Scale = Powers | Floats | Tiles
TILES, LEVELS = "tiles", "levels"
"""Kinds of real scales per tile: float32 numbers, or E4M3 codes times one float32."""
DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float16, torch.bfloat16, torch.float32)}
DTYPES |= {"float64": torch.float64, "bool": torch.bool}
_KEYS = {"bits", "shape", "dtype", "table", "table_axis", "scale"}
_MOST = 2**48
"""Bound of sizes in a file."""


@dataclass(frozen=True)
class Stored:
    """Parameter as its layer computes with it; `is_held`: quantising again would change it."""

    values: Tensor
    format: Quantizer
    scale: Floats | Tiles | None
    is_held: bool


@runtime_checkable
class HasFormats(Protocol):
    """Layer whose parameters have number formats."""

    def stored_values(self) -> dict[str, Stored]:
        """Return its parameters as it computes with them."""


@dataclass
class Packed:
    """Stored tensors with the records of packed ones, and the rounded parameters of layers."""

    tensors: dict[str, Tensor]
    records: Records = field(default_factory=dict)
    rounded: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, Tensor] = field(default_factory=dict)

    def replace(self, name: str, coded: Coded) -> None:
        """Store `coded` instead of the tensor `name`."""
        del self.tensors[name]
        self.tensors[f"{name}:codes"] = coded.codes
        record = {**record_of(coded), "table": self._table(coded.table)}
        if coded.scale is not None:
            record["scale"]["tensor"] = self._scales(name, coded.scale)
        self.records[name] = record

    def _scales(self, name: str, scale: Scale) -> str:
        """Store scales, unless the layer has them already; return their name."""
        own = self.tensors.get(f"{name}_scale")
        if own is not None and same_bits(own, scale.values):
            return f"{name}_scale"
        self.tensors[f"{name}:scales"] = scale.values
        return f"{name}:scales"

    def _table(self, table: Tensor) -> str:
        for name, other in self.tables.items():
            if same_bits(other, table):
                return name
        name = f"table:{len(self.tables)}"
        self.tables[name] = self.tensors[name] = table
        return name


def record_of(coded: Coded) -> Record:
    """Return the layout of a coded tensor, without the name of its table."""
    return {
        "bits": coded.bits,
        "shape": list(coded.shape),
        "dtype": str(coded.dtype).removeprefix("torch."),
        "table_axis": coded.table_axis,
        "scale": _scale_record(coded.scale),
    }


def check_parts(record: Any, parts: Mapping[str, Tensor | None], name: str) -> None:
    """Raise if parts do not match a record."""
    tensors = {f"{name}:{k}": t for k, t in parts.items() if t is not None and k != "table"}
    table = parts.get("table")
    if table is not None:
        tensors["table:0"] = table
    if isinstance(record, dict):
        record = {**record, "table": "table:0"}
    if isinstance(record, dict) and isinstance(record.get("scale"), dict):
        record["scale"] = {**record["scale"], "tensor": f"{name}:scales"}
    _read(name, record, tensors)


def _scale_record(scale: Scale | None) -> dict[str, Any] | None:
    if scale is None:
        return None
    if isinstance(scale, Floats):
        return {"kind": "float", "axis": scale.axis, "group_size": scale.group_size}
    if isinstance(scale, Tiles):
        kind = LEVELS if scale.has_levels else TILES
        return {"kind": kind, "tile": list(scale.tile), "axis": scale.axis}
    return {
        "kind": "power",
        "bits": scale.bits,
        "lowest": scale.lowest,
        "tile": list(scale.tile),
        "axis": scale.axis,
    }


def scale_from(record: Record, values: Tensor) -> Scale:
    """Return the scales that a checked record describes."""
    if record["kind"] == "float":
        return Floats(values, record["axis"], record["group_size"])
    tile = (record["tile"][0], record["tile"][1])
    if record["kind"] in (LEVELS, TILES):
        return Tiles(values, tile, record["axis"])
    return Powers(values, record["bits"], record["lowest"], tile, record["axis"])


def pack_tensors(
    model: nn.Module, stored: Mapping[str, Tensor], used: Iterable[str], bases: Iterable[str]
) -> Packed:
    """Return `stored` with parameters in formats of at most 8 bits as codes, and masks as bits.

    Tensors that nodes read (`used`) or that have views (`bases`) are not packed, nor is a
    parameter that two layers read as different values.
    """
    packed, unpacked = Packed(dict(stored)), {*used, *bases}
    named = list(model.named_parameters(remove_duplicate=False))
    plain = {id(t) for name, t in named if name in unpacked}
    names = {id(t): name for name, t in named if name in stored}
    for key, uses in _uses(model).items():
        coded = None if key in plain or key not in names else _coded(uses)
        if coded is None:
            continue
        packed.replace(names[key], coded)
        for path, parameter, value in uses:
            if value is not None and value.is_held:
                packed.rounded.setdefault(path, []).append(parameter)
    for name, tensor in stored.items():
        if tensor.dtype == torch.bool and tensor.numel() and name not in unpacked:
            codes, table = pack_bits(tensor.to(torch.uint8), 1), torch.tensor([0.0, 1.0])
            packed.replace(name, Coded(codes, 1, tuple(tensor.shape), torch.bool, table))
    return packed


_Use = tuple[str, str, Stored | None]


def _uses(model: nn.Module) -> dict[int, list[_Use]]:
    """Return the uses of every parameter with a format: layer, name and value in the layer."""
    uses: dict[int, list[_Use]] = {}
    quantized: set[tuple[int, str]] = set()
    for path, module in model.named_modules():
        values = module.stored_values() if isinstance(module, HasFormats) else {}
        for name, value in values.items():
            owner_name, _, leaf = name.rpartition(".")
            owner = module.get_submodule(owner_name)
            quantized.add((id(owner), leaf))
            uses.setdefault(id(owner._parameters.get(leaf)), []).append((path, name, value))
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in uses and (id(module), name) not in quantized:
                uses[id(parameter)].append((path, name, None))
    return uses


def _coded(uses: list[_Use]) -> Coded | None:
    values = [value for _, _, value in uses]
    first = values[0]
    if first is None or any(v is None or not same_bits(v.values, first.values) for v in values):
        return None
    return encode(first.values, first.format, first.scale)


def unpack_tensors(tensors: Mapping[str, Tensor], records: Any) -> dict[str, Tensor]:
    """Return the tensors that `pack_tensors` received."""
    if not isinstance(records, dict):
        raise CheckpointError(f"packed: expected a mapping, got {shown(records)}.")
    unpacked = dict(tensors)
    parts: set[str] = set()
    for name, record in records.items():
        if name in tensors:
            raise CheckpointError(f"packed.{name:.200}: is there as a plain tensor too.")
        unpacked[name] = decode(_read(name, record, tensors))
        parts |= {f"{name}:codes", record["table"]}
        if record["scale"] is not None and record["scale"]["tensor"] != f"{name}_scale":
            parts.add(record["scale"]["tensor"])
    return {name: tensor for name, tensor in unpacked.items() if name not in parts}


def _read(name: str, record: Any, tensors: Mapping[str, Tensor]) -> Coded:
    where = f"packed.{name:.200}"
    if not isinstance(record, dict) or record.keys() != _KEYS:
        raise CheckpointError(f"{where}: expected the keys {', '.join(sorted(_KEYS))}.")
    bits = _number(record["bits"], f"{where}.bits", 1, 8)
    shape = _shape(record["shape"], f"{where}.shape")
    if not isinstance(record["dtype"], str) or record["dtype"] not in DTYPES:
        allowed = ", ".join(DTYPES)
        raise CheckpointError(
            f"{where}.dtype: {shown(record['dtype'])} is not allowed. Allowed: {allowed}."
        )
    if not isinstance(record["table"], str) or not record["table"].startswith("table:"):
        raise CheckpointError(f"{where}.table: expected a table, got {shown(record['table'])}.")
    axis = _axis(record["table_axis"], f"{where}.table_axis", shape)
    table = _tensor(tensors, record["table"], where, torch.float32, torch.float64)
    rows = () if axis is None else (shape[axis],)
    _check_shape(table, (*rows, 2**bits), f"{where}.table")
    codes = _tensor(tensors, f"{name}:codes", where, torch.uint8)
    _check_shape(codes, (bytes_of(math.prod(shape), bits),), f"{where}: codes")
    scale = _read_scale(record["scale"], name, shape, tensors, table.dtype)
    return Coded(codes, bits, shape, DTYPES[record["dtype"]], table, scale, axis)


def _read_scale(
    record: Any, name: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor], wide: torch.dtype
) -> Scale | None:
    where = f"packed.{name:.200}.scale"
    if record is None:
        return None
    kind = record.get("kind") if isinstance(record, dict) else None
    place = record.get("tensor") if isinstance(record, dict) else None
    if place not in (f"{name}:scales", f"{name}_scale"):
        raise CheckpointError(
            f"{where}.tensor: expected the scales of '{name}', got {shown(place)}."
        )
    if kind == "float" and record.keys() == {"kind", "axis", "group_size", "tensor"}:
        return _read_floats(record, _tensor(tensors, place, where, wide), shape, where)
    if kind == "power" and record.keys() == {"kind", "bits", "lowest", "tile", "axis", "tensor"}:
        return _read_powers(record, _tensor(tensors, place, where, torch.uint8), shape, where)
    if kind in (TILES, LEVELS) and record.keys() == {"kind", "tile", "axis", "tensor"}:
        dtype = torch.uint8 if kind == LEVELS else torch.float32
        return _read_tiles(record, _tensor(tensors, place, where, dtype), shape, where)
    raise CheckpointError(f"{where}: expected the record of a scale, got {shown(record)}.")


def _read_tiles(record: Any, values: Tensor, shape: tuple[int, ...], where: str) -> Tiles:
    tile = _read_tile(record, shape, where)
    extra = FLOAT_BYTES if record["kind"] == LEVELS else 0
    _check_shape(values, (_tiles(shape, tile, record["axis"]) + extra,), where)
    tiles = Tiles(values, tile, record["axis"])
    if values.device.type != "meta":
        for level in tiles.levels():
            if level is not None:
                _finite(level, where)
    return tiles


def _read_floats(record: Any, values: Tensor, shape: tuple[int, ...], where: str) -> Floats:
    axis, group = _axis(record["axis"], f"{where}.axis", shape), record["group_size"]
    if group is not None:
        group = _number(group, f"{where}.group_size", 1, _MOST)
        groups = -(-shape[-1] // group) if shape else 0
        if axis is not None or tuple(values.shape) not in ((groups,), (*shape[:-1], groups)):
            raise CheckpointError(f"{where}: {list(values.shape)} scales do not fit {list(shape)}.")
        return Floats(_finite(values, where), None, group)
    _check_shape(values, () if axis is None else (shape[axis],), where)
    return Floats(_finite(values, where), record["axis"])


def _finite(values: Tensor, where: str) -> Tensor:
    """Return `values`; raise CheckpointError if one is infinite or NaN."""
    if values.device.type != "meta" and not bool(values.isfinite().all()):
        raise CheckpointError(f"{where}: a scale is infinite or NaN.")
    return values


def _read_powers(record: Any, codes: Tensor, shape: tuple[int, ...], where: str) -> Powers:
    bits = _number(record["bits"], f"{where}.bits", 1, 8)
    lowest = _number(record["lowest"], f"{where}.lowest", -400, 400)
    tile = _read_tile(record, shape, where)
    _check_shape(codes, (bytes_of(_tiles(shape, tile, record["axis"]), bits),), where)
    return Powers(codes, bits, lowest, tile, record["axis"])


def _read_tile(record: Any, shape: tuple[int, ...], where: str) -> tuple[int, int]:
    """Return rows and columns of a tile; raise unless they and the axis are valid."""
    axis, tile = _axis(record["axis"], f"{where}.axis", shape), record["tile"]
    is_pair = isinstance(tile, list) and len(tile) == 2 and axis is not None
    if not is_pair or not all(type(n) is int and (n == -1 or 0 < n < _MOST) for n in tile):
        raise CheckpointError(f"{where}.tile: expected rows and columns, got {shown(tile)}.")
    return tile[0], tile[1]


def _tiles(shape: tuple[int, ...], tile: tuple[int, int], axis: int) -> int:
    """Return the number of tiles of a tensor of this shape."""
    like = torch.empty(shape, device="meta")
    rows = torch.atleast_2d(like.movedim(axis, -1) if like.dim() > 1 else like)
    sizes = [n if t == -1 else t for n, t in zip(rows.shape[-2:], tile, strict=True)]
    down, across = (-(-n // t) for n, t in zip(rows.shape[-2:], sizes, strict=True))
    return math.prod(rows.shape[:-2]) * down * across


def _tensor(tensors: Mapping[str, Tensor], name: str, where: str, *kinds: torch.dtype) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype not in kinds:
        state = "is missing" if tensor is None else f"is {tensor.dtype}"
        allowed = " or ".join(str(k) for k in kinds)
        raise CheckpointError(f"{where}: tensor '{name:.200}' {state}. Expected: {allowed}.")
    return tensor


def _check_shape(tensor: Tensor, shape: tuple[int, ...], where: str) -> None:
    if tuple(tensor.shape) != shape:
        raise CheckpointError(f"{where}: shape {list(tensor.shape)}, expected {list(shape)}.")


def _number(value: Any, where: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise CheckpointError(f"{where}: expected {low} to {high}, got {shown(value)}.")
    return value


def _shape(value: Any, where: str) -> tuple[int, ...]:
    is_list = isinstance(value, list) and all(type(n) is int and 0 < n < _MOST for n in value)
    if not is_list or math.prod(value) >= _MOST:
        raise CheckpointError(f"{where}: expected a list of sizes, got {shown(value)}.")
    return tuple(value)


def _axis(value: Any, where: str, shape: tuple[int, ...]) -> int | None:
    if value is None:
        return None
    axis = _number(value, where, -len(shape), len(shape) - 1)
    return axis % len(shape)
