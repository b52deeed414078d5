"""Safetensors files, read and written one tensor at a time."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chop.errors import ExportError
from chop.files import check_stored, parse_json, whole_file

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types of torch by their names in a header."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ITEM_SIZES = (8, 4, 2, 1)
"""Bytes of an element, in the order of the file: every tensor starts at a multiple of its own."""
LENGTH_BYTES = 8
LARGEST_HEADER = 100_000_000  # limit of the package safetensors
COPY_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class StoredTensor:
    """Name, shape and dtype of a tensor in a file."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Header:
    """Tensors of a file in the order of their data, and its metadata."""

    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, str]


def read_header(file: Path) -> Header:
    """Return the header of a safetensors file; raise ExportError for a damaged one."""
    if not file.is_file():
        raise ExportError(f"{file}: no such file.")
    check_stored(file, ExportError)
    try:
        with safe_open(file, framework="pt") as opened:  # checks offsets and sizes
            metadata = dict(opened.metadata() or {})
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
            text = opened.read(min(length, LARGEST_HEADER)).decode()
    except (SafetensorError, OSError, ValueError) as error:
        raise ExportError(f"{file}: damaged safetensors file ({error}).") from error
    records: dict[str, Any] = parse_json(text, str(file), ExportError)
    records.pop("__metadata__", None)
    return Header(tuple(_stored(file, *item) for item in records.items()), metadata)


def _stored(file: Path, name: str, record: Mapping[str, Any]) -> StoredTensor:
    if record["dtype"] not in DTYPES:
        allowed = ", ".join(DTYPES)
        raise ExportError(f"{file}: tensor '{name}' is {record['dtype']}. Allowed: {allowed}.")
    return StoredTensor(name, tuple(record["shape"]), DTYPES[record["dtype"]])


@contextlib.contextmanager
def mapped_tensor(file: Path, name: str) -> Iterator[Tensor]:
    """Yield one tensor of a file, mapped: its pages are released at the end of the block."""
    with safe_open(file, framework="pt") as opened:
        yield opened.get_tensor(name)


class ShardWriter:
    """A safetensors file in the making; `add` writes a tensor to the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[int, dict[str, Any]] = {size: {} for size in ITEM_SIZES}
        self._parts: dict[int, BinaryIO] = {}

    def _part_file(self, size: int) -> Path:
        return self.path.with_name(f".{self.path.name}.part{size}")

    def add(self, name: str, tensor: Tensor) -> None:
        """Append a tensor."""
        size = tensor.dtype.itemsize
        part = self._parts.get(size)
        if part is None:
            part = self._parts[size] = self._part_file(size).open("wb")
        start = part.tell()
        flat = tensor.detach().contiguous().reshape(-1)
        if flat.stride() != (1,):  # of one number that was expanded
            flat = flat.clone(memory_format=torch.contiguous_format)
        flat = flat.view(torch.uint8)
        for piece in torch.split(flat, COPY_AT_ONCE):
            part.write(piece.numpy().data)
        record = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape)}
        self._records[size][name] = {**record, "data_offsets": [start, part.tell()]}

    def finish(self, metadata: Mapping[str, str]) -> None:
        """Join the parts to the whole file."""
        header: dict[str, Any] = {"__metadata__": dict(metadata)}
        before = 0
        for size in ITEM_SIZES:
            for name, record in self._records[size].items():
                offsets = [before + offset for offset in record["data_offsets"]]
                header[name] = {**record, "data_offsets": offsets}
            before += self._parts[size].tell() if size in self._parts else 0
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % LENGTH_BYTES)  # the data starts at a multiple of 8
        with whole_file(self.path, to_disk=True) as draft, draft.open("wb") as whole:
            whole.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
            for size, part in sorted(self._parts.items(), reverse=True):
                part.flush()
                with self._part_file(size).open("rb") as stored:
                    shutil.copyfileobj(stored, whole, COPY_AT_ONCE)

    def close(self) -> None:
        """Remove the parts."""
        for part in self._parts.values():
            part.close()
        for size in ITEM_SIZES:
            self._part_file(size).unlink(missing_ok=True)


@contextlib.contextmanager
def shard_writer(path: Path) -> Iterator[ShardWriter]:
    """Yield a writer of the file `path`, which appears when `finish` is called."""
    writer = ShardWriter(path)
    try:
        yield writer
    finally:
        writer.close()
