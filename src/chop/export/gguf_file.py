"""GGUF version 3 as a container of metadata by key and tensors by name.

The layout follows the specification of the format: a header, key and value pairs, descriptions of
tensors, then their data, each aligned to 32 bytes. Numbers are little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from chop.errors import ExportError
from chop.export.gguf_types import BY_NUMBER, GGUFType
from chop.files import check_stored, shown, whole_file

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32
ALIGNMENTS = tuple(1 << i for i in range(3, 21))
"""Valid alignments in bytes: multiples of 8 (specification) and powers of 2 (llama.cpp)."""
DEEPEST = 4
"""Maximum depth of nested arrays."""
MOST = 1 << 40
"""Limit on the elements of a tensor, far above any model."""
_FORMATS = ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")
_SCALARS = {number: f"<{form}" for number, form in enumerate(_FORMATS) if form is not None}
"""Format of a scalar for `struct`, by the number of its type in the specification."""
_Described = tuple[str, tuple[int, ...], int, int]
"""Name, shape, type and offset of a tensor."""
_STRING, _ARRAY, _BOOL, _UINT32, _INT32, _FLOAT32 = 8, 9, 7, 4, 5, 6


@dataclass(frozen=True)
class GGUFTensor:
    """Tensor to write; `data` computes its bytes on demand."""

    name: str
    shape: tuple[int, ...]
    kind: GGUFType
    data: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return self.kind.size(math.prod(self.shape))


def write_gguf(path: Path, metadata: dict[str, Any], tensors: list[GGUFTensor]) -> None:
    """Write a file, whole or not at all, with one tensor in memory at a time."""
    with whole_file(path) as draft, draft.open("wb") as out:
        out.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
        for key, value in metadata.items():
            out.write(_string(key) + _value(value))
        offset = 0
        for tensor in tensors:
            sizes = tensor.shape[::-1]  # the fastest dimension first
            out.write(_string(tensor.name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes))
            out.write(struct.pack("<IQ", tensor.kind.number, offset))
            offset += tensor.nbytes + -tensor.nbytes % ALIGNMENT
        _align(out)
        for tensor in tensors:
            data = tensor.data()
            assert data.nbytes == tensor.nbytes, f"{tensor.name}: {data.nbytes} bytes"
            out.write(np.ascontiguousarray(data).data)
            _align(out)


def _align(out: BinaryIO) -> None:
    out.write(b"\0" * (-out.tell() % ALIGNMENT))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kind = _kind(value[0]) if value else _INT32
        kind = _INT32 if kind == _UINT32 else kind  # token types are signed by the specification
        parts = b"".join(_plain(kind, v) for v in value)
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + parts
    return struct.pack("<I", _kind(value)) + _plain(_kind(value), value)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _UINT32 if value >= 0 else _INT32
    return _STRING if isinstance(value, str) else _FLOAT32


def _plain(kind: int, value: Any) -> bytes:
    return _string(value) if kind == _STRING else struct.pack(_SCALARS[kind], value)


class GGUFFile:
    """File mapped into memory: `metadata` by key, and `tensors` by name.

    Arrays of numbers in the metadata are numpy arrays, others are lists.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise ExportError(f"{self.path}: no such file.")
        try:
            check_stored(self.path, ExportError)
            with self.path.open("rb") as stream:
                self._pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            self._data = np.frombuffer(self._pages, np.uint8)
        except ExportError:
            raise
        except (OSError, ValueError) as error:
            raise ExportError(f"{self.path}: cannot be read ({error}).") from error
        self._at = 0
        try:
            self._read()
        except (UnicodeDecodeError, struct.error) as error:
            raise self._damaged(str(error)) from error

    def _read(self) -> None:
        if self._take(4).tobytes() != MAGIC:
            raise ExportError(f"{self.path}: not a GGUF file: it does not start with GGUF.")
        version, tensors, pairs = struct.unpack("<IQQ", self._take(20).tobytes())
        if version not in (2, VERSION):
            raise ExportError(f"{self.path}: GGUF version {version}. Allowed: 2 and {VERSION}.")
        self.metadata: dict[str, Any] = {}
        for _ in range(self._count(pairs)):
            key = self._text()
            if key in self.metadata:
                raise self._damaged(f"the key {shown(key)} is there twice")
            self.metadata[key] = self._any(self._number("<I"))
        described = [self._tensor() for _ in range(self._count(tensors))]
        align = self.metadata.get("general.alignment", ALIGNMENT)
        if type(align) is not int or align not in ALIGNMENTS:
            raise self._damaged(
                f"general.alignment is {shown(align)}. "
                f"Allowed: powers of 2 from {ALIGNMENTS[0]} to {ALIGNMENTS[-1]}"
            )
        start = self._at + -self._at % align
        self._check_places(described, align)
        self.tensors: dict[str, tuple[GGUFType, tuple[int, ...], np.ndarray]] = {}
        for name, shape, number, offset in described:
            kind = BY_NUMBER[number]
            end = start + offset + kind.size(math.prod(shape))
            if end > len(self._data):
                raise self._damaged(f"tensor {shown(name)} of shape {list(shape)} reaches beyond")
            self.tensors[name] = kind, shape, self._data[start + offset : end]

    def _check_places(self, described: list[_Described], align: int) -> None:
        """Raise if two tensors share a name or bytes, or one is not aligned."""
        if len({each[0] for each in described}) != len(described):
            raise self._damaged("two tensors have one name")
        end, before = 0, ""
        for name, shape, kind, offset in sorted(described, key=lambda each: each[3]):
            if offset % align:
                raise self._damaged(f"tensor {shown(name)} at {offset}, no multiple of {align}")
            if offset < end:
                raise self._damaged(f"tensors {shown(before)} and {shown(name)} share bytes")
            end, before = offset + BY_NUMBER[kind].size(math.prod(shape)), name

    def _damaged(self, what: str) -> ExportError:
        return ExportError(f"{self.path}: damaged GGUF file at byte {self._at} ({what}).")

    def _take(self, count: int) -> np.ndarray:
        if count > len(self._data) - self._at:
            raise self._damaged(f"{count} bytes expected, {len(self._data) - self._at} there")
        self._at += count
        return self._data[self._at - count : self._at]

    def _count(self, value: int) -> int:
        if value > len(self._data) - self._at:
            raise self._damaged(f"{value} entries in {len(self._data) - self._at} bytes")
        return value

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)).tobytes())[0]

    def _text(self) -> str:
        return self._take(self._count(self._number("<Q"))).tobytes().decode()

    def _any(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._text()
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _ARRAY and depth < DEEPEST:
            inner, count = self._number("<I"), self._count(self._number("<Q"))
            if inner in _SCALARS:
                form = np.dtype(_SCALARS[inner])
                return self._take(count * form.itemsize).view(form)
            return [self._any(inner, depth + 1) for _ in range(count)]
        raise self._damaged(f"type {kind} of a value is unknown")

    def _tensor(self) -> _Described:
        name, dims = self._text(), self._number("<I")
        if dims > 4:
            raise self._damaged(f"tensor {shown(name)} has {dims} dimensions")
        shape = tuple(self._number("<Q") for _ in range(dims))[::-1]
        kind, offset = self._number("<I"), self._number("<Q")
        if kind not in BY_NUMBER:
            types = ", ".join(f"{t.name} ({t.number})" for t in BY_NUMBER.values())
            raise ExportError(
                f"{self.path}: tensor {shown(name)} has type {kind}. Allowed: {types}."
            )
        if not shape or math.prod(shape) not in range(1, MOST) or shape[-1] % BY_NUMBER[kind].block:
            raise self._damaged(f"tensor {shown(name)} of {BY_NUMBER[kind].name} has {list(shape)}")
        return name, shape, kind, offset

    def values(self, name: str) -> np.ndarray:
        """Return the values of a tensor in float32; raise if one is NaN or infinite."""
        kind, shape, data = self.tensors[name]
        values: np.ndarray = kind.decode(data.reshape(-1, kind.nbytes)).reshape(shape)
        if not np.isfinite(values).all():
            raise ExportError(
                f"{self.path}: tensor {shown(name)} of {kind.name} has values or scales that are "
                "NaN or infinite."
            )
        return values

    def __iter__(self) -> Iterator[str]:
        """Yield the names of tensors; release the pages of each when the next one is asked for.

        Pages that were read count as memory of the process. Reading them again is possible.
        """
        for name, (_, _, data) in self.tensors.items():
            yield name
            self._release(data)

    def _release(self, data: np.ndarray) -> None:
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = data.ctypes.data - self._data.ctypes.data
        first = start - start % mmap.PAGESIZE
        self._pages.madvise(mmap.MADV_DONTNEED, first, start + data.nbytes - first)
