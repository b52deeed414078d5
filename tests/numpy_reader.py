"""Packed checkpoints read with numpy alone, written from docs/packed_checkpoints.md.

It shares no code with the package.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

DTYPES = {
    "U8": np.uint8,
    "BOOL": np.bool_,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "I64": np.int64,
    "BF16": np.uint16,
}


def read(path: Path) -> dict[str, np.ndarray]:
    """The packed tensors of a checkpoint; bfloat16 as the float32 it equals."""
    told = json.loads(Path(f"{path}.json").read_text())
    assert told["format"] == "mase-graph" and told["version"] == 3
    stored = tensors(Path(f"{path}.safetensors"))
    return {name: _values(name, record, stored) for name, record in told["packed"].items()}


def tensors(file: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file, as views of the mapped file."""
    data = np.memmap(file, np.uint8, "r")
    length = int(data[:8].view("<u8")[0])
    header = json.loads(data[8 : 8 + length].tobytes())
    header.pop("__metadata__", None)
    return {name: _view(data[8 + length :], facts) for name, facts in header.items()}


def _view(data: np.ndarray, facts: dict) -> np.ndarray:
    start, end = facts["data_offsets"]
    return data[start:end].view(DTYPES[facts["dtype"]]).reshape(facts["shape"])


def numbers(data: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Numbers of `bits` bits out of a stream of bytes."""
    stream = np.unpackbits(data, bitorder="little")[: count * bits].reshape(count, bits)
    return (stream.astype(np.int64) << np.arange(bits)).sum(1)


def _values(name: str, record: dict, stored: dict) -> np.ndarray:
    shape = tuple(record["shape"])
    codes = numbers(stored[f"{name}:codes"], record["bits"], int(np.prod(shape))).reshape(shape)
    table = stored[record["table"]]
    if record["table_axis"] is None:
        values = table[codes]
    else:
        axis = record["table_axis"]
        index = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
        values = table[index, codes]
    scale = record["scale"]
    if scale is not None:
        kinds = {"float": _floats, "power": _powers, "tiles": _tiles, "levels": _tiles}
        rule = kinds[scale["kind"]]
        values = rule(values, scale, stored[scale["tensor"]])
    return _rounded(values, record["dtype"])


def _floats(values: np.ndarray, record: dict, scales: np.ndarray) -> np.ndarray:
    if record["group_size"] is not None:
        scales = np.repeat(scales, record["group_size"], -1)[..., : values.shape[-1]]
    elif record["axis"] is not None:
        axis = record["axis"] % values.ndim
        scales = scales.reshape([-1 if d == axis else 1 for d in range(values.ndim)])
    return values * scales + values.dtype.type(0)


def _e4m3(codes: np.ndarray) -> np.ndarray:
    exponents, mantissas = codes.astype(np.int32) >> 3, (codes & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissas / 8, exponents - 7)
    return np.where(exponents > 0, normal, mantissas * np.float32(2.0**-9)).astype(np.float32)


def _tiles(values: np.ndarray, record: dict, scales: np.ndarray) -> np.ndarray:
    if record["kind"] == "levels":
        scales = _e4m3(scales[4:]) * scales[:4].copy().view("<f4")[0]
    moved = np.moveaxis(values, record["axis"], -1) if values.ndim > 1 else values[None]
    *leading, rows, columns = moved.shape
    tall, wide = (n if t == -1 else t for n, t in zip((rows, columns), record["tile"], strict=True))
    tiles = scales.reshape(*leading, -(-rows // tall), -(-columns // wide))
    found = moved * np.repeat(np.repeat(tiles, tall, -2), wide, -1)[..., :rows, :columns]
    return np.moveaxis(found, -1, record["axis"]) if values.ndim > 1 else found[0]


def _powers(values: np.ndarray, record: dict, data: np.ndarray) -> np.ndarray:
    moved = np.moveaxis(values, record["axis"], -1) if values.ndim > 1 else values[None]
    *leading, rows, columns = moved.shape
    tall, wide = (n if t == -1 else t for n, t in zip((rows, columns), record["tile"], strict=True))
    tiles = (*leading, -(-rows // tall), -(-columns // wide))
    codes = numbers(data, record["bits"], int(np.prod(tiles))).reshape(tiles)
    exponents = np.repeat(np.repeat(codes, tall, -2), wide, -1)[..., :rows, :columns]
    found = np.ldexp(moved, (exponents + record["lowest"]).astype(np.int32))
    return np.moveaxis(found, -1, record["axis"]) if values.ndim > 1 else found[0]


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    even = bits + 0x7FFF + ((bits >> 16) & 1)
    return ((even >> 16) << 16).astype(np.uint32).view(np.float32)
