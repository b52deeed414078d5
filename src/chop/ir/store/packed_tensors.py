"""Tensors of a checkpoint in the bits of their formats.

A packed checkpoint has, in place of a tensor `w`, its codes `w:codes`, and where there are any its
scales `w:scales`; tables of values are shared by all that have the same (`table:0`). The record of
`w` under `packed` says how they lie. The page "Packed checkpoints" of the documentation is the
reference of the layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from chop.errors import CheckpointError
from chop.files import shown
from chop.nn.quantizers import Quantizer
from chop.nn.quantizers.bits import bytes_of, pack_bits
from chop.nn.quantizers.codes import Coded, Floats, Powers, decode, encode, same_bits

Record = dict[str, Any]
Records = dict[str, Record]
DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float16, torch.bfloat16, torch.float32)}
DTYPES |= {"float64": torch.float64, "bool": torch.bool}
_KEYS = {"bits", "shape", "dtype", "table", "table_axis", "scale"}
_MOST = 2**48


@dataclass(frozen=True)
class Stored:
    """A parameter as its layer computes with it; `is_held`: its format would change it again."""

    values: Tensor
    format: Quantizer
    scale: Floats | None
    is_held: bool


@runtime_checkable
class HasFormats(Protocol):
    """A layer whose parameters have number formats."""

    def stored_values(self) -> dict[str, Stored]:
        """Its parameters as it computes with them."""


# -- saving ----------------------------------------------------------------------------------


@dataclass
class Packed:
    """What is stored in place of some tensors, its records, and what is held by which layer."""

    tensors: dict[str, Tensor]
    records: Records = field(default_factory=dict)
    held: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, Tensor] = field(default_factory=dict)

    def replace(self, name: str, coded: Coded) -> None:
        """Store `coded` in the place of the tensor `name`."""
        del self.tensors[name]
        self.tensors[f"{name}:codes"] = coded.codes
        record = {**record_of(coded), "table": self._table(coded.table)}
        if coded.scale is not None:
            record["scale"]["tensor"] = self._scales(name, coded.scale)
        self.records[name] = record

    def _scales(self, name: str, scale: Powers | Floats) -> str:
        """Store scales, unless they are those that the layer keeps; where they are."""
        values = scale.values
        kept = self.tensors.get(f"{name}_scale")
        if kept is not None and same_bits(kept, values):
            return f"{name}_scale"
        self.tensors[f"{name}:scales"] = values
        return f"{name}:scales"

    def _table(self, table: Tensor) -> str:
        for name, known in self.tables.items():
            if same_bits(known, table):
                return name
        name = f"table:{len(self.tables)}"
        self.tables[name] = self.tensors[name] = table
        return name


def record_of(coded: Coded) -> Record:
    """How the parts of a tensor lie, but for the name of its table."""
    return {
        "bits": coded.bits,
        "shape": list(coded.shape),
        "dtype": str(coded.dtype).removeprefix("torch."),
        "table_axis": coded.table_axis,
        "scale": _scale_record(coded.scale),
    }


def check_parts(record: Any, parts: Mapping[str, Tensor | None], name: str) -> None:
    """Refuse parts that are not those of a record."""
    tensors = {f"{name}:{k}": t for k, t in parts.items() if t is not None and k != "table"}
    table = parts.get("table")
    if table is not None:
        tensors["table:0"] = table
    if isinstance(record, dict):
        record = {**record, "table": "table:0"}
    if isinstance(record, dict) and isinstance(record.get("scale"), dict):
        record["scale"] = {**record["scale"], "tensor": f"{name}:scales"}
    _read(name, record, tensors)


def _scale_record(scale: Powers | Floats | None) -> dict[str, Any] | None:
    if scale is None:
        return None
    if isinstance(scale, Floats):
        return {"kind": "float", "axis": scale.axis, "group_size": scale.group_size}
    return {
        "kind": "power",
        "bits": scale.bits,
        "lowest": scale.lowest,
        "tile": list(scale.tile),
        "axis": scale.axis,
    }


def pack_tensors(
    model: nn.Module, stored: Mapping[str, Tensor], used: Iterable[str], bases: Iterable[str]
) -> Packed:
    """`stored` with what layers have in formats of at most 8 bits as codes, and masks in bits.

    `used` are tensors that nodes read themselves, `bases` those that hold views: they stay as they
    are, and so does a parameter that two layers read as different values.
    """
    packed, kept = Packed(dict(stored)), {*used, *bases}
    named = list(model.named_parameters(remove_duplicate=False))
    plain = {id(t) for name, t in named if name in kept}
    names = {id(t): name for name, t in named if name in stored}
    for key, uses in _uses(model).items():
        coded = None if key in plain or key not in names else _coded(uses)
        if coded is None:
            continue
        packed.replace(names[key], coded)
        for path, parameter, told in uses:
            if told is not None and told.is_held:
                packed.held.setdefault(path, []).append(parameter)
    for name, tensor in stored.items():
        if tensor.dtype == torch.bool and tensor.numel() and name not in kept:
            packed.replace(name, _bits(tensor))
    return packed


_Use = tuple[str, str, Stored | None]


def _uses(model: nn.Module) -> dict[int, list[_Use]]:
    """Every parameter that has a format somewhere, with the layers that read it, and as what."""
    found: dict[int, list[_Use]] = {}
    spoken: set[tuple[int, str]] = set()
    for path, module in model.named_modules():
        told = module.stored_values() if isinstance(module, HasFormats) else {}
        for name, stored in told.items():
            owner, leaf = _place(module, name)
            spoken.add((id(owner), leaf))
            found.setdefault(id(owner._parameters.get(leaf)), []).append((path, name, stored))
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in found and (id(module), name) not in spoken:
                found[id(parameter)].append((path, name, None))
    return found


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    owner, _, leaf = name.rpartition(".")
    return module.get_submodule(owner), leaf


def _coded(uses: list[_Use]) -> Coded | None:
    told = [stored for _, _, stored in uses]
    first = told[0]
    if first is None or any(t is None or not same_bits(t.values, first.values) for t in told):
        return None
    return encode(first.values, first.format, first.scale)


def _bits(mask: Tensor) -> Coded:
    table = torch.tensor([0.0, 1.0])
    codes = pack_bits(mask.to(torch.uint8), 1)
    return Coded(codes, 1, tuple(mask.shape), torch.bool, table)


# -- loading ---------------------------------------------------------------------------------


def unpack_tensors(tensors: Mapping[str, Tensor], records: Any) -> dict[str, Tensor]:
    """The tensors that `pack_tensors` was given."""
    if not isinstance(records, dict):
        raise CheckpointError(f"packed: expected a mapping, got {shown(records)}.")
    found = dict(tensors)
    parts: set[str] = set()
    for name, record in records.items():
        if name in tensors:
            raise CheckpointError(f"packed.{name:.200}: is there as a plain tensor too.")
        coded = _read(name, record, tensors)
        found[name] = decode(coded)
        parts |= set(_parts(name, record))
    return {name: tensor for name, tensor in found.items() if name not in parts}


def _parts(name: str, record: Mapping[str, Any]) -> Iterator[str]:
    yield f"{name}:codes"
    yield record["table"]
    if record["scale"] is not None and record["scale"]["tensor"] != f"{name}_scale":
        yield record["scale"]["tensor"]


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
) -> Powers | Floats | None:
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
    raise CheckpointError(f"{where}: expected the record of a scale, got {shown(record)}.")


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
    axis = _axis(record["axis"], f"{where}.axis", shape)
    tile = record["tile"]
    is_pair = isinstance(tile, list) and len(tile) == 2 and axis is not None
    if not is_pair or not all(type(n) is int and (n == -1 or 0 < n < _MOST) for n in tile):
        raise CheckpointError(f"{where}.tile: expected rows and columns, got {shown(tile)}.")
    tiles = _tiles(shape, (tile[0], tile[1]), record["axis"])
    _check_shape(codes, (bytes_of(tiles, bits),), where)
    return Powers(codes, bits, lowest, (tile[0], tile[1]), record["axis"])


def _tiles(shape: tuple[int, ...], tile: tuple[int, int], axis: int) -> int:
    """How many tiles a tensor of this shape has."""
    like = torch.empty(shape, device="meta")
    rows = torch.atleast_2d(like.movedim(axis, -1) if like.dim() > 1 else like)
    sizes = [n if t == -1 else t for n, t in zip(rows.shape[-2:], tile, strict=True)]
    down, across = (-(-n // t) for n, t in zip(rows.shape[-2:], sizes, strict=True))
    return math.prod(rows.shape[:-2]) * down * across


def _tensor(tensors: Mapping[str, Tensor], name: str, where: str, *kinds: torch.dtype) -> Tensor:
    found = tensors.get(name)
    if found is None or found.dtype not in kinds:
        given = "is missing" if found is None else f"is {found.dtype}"
        allowed = " or ".join(str(k) for k in kinds)
        raise CheckpointError(f"{where}: tensor '{name:.200}' {given}. Expected: {allowed}.")
    return found


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
