"""Arrays of numbers from untrusted `.npz` files.

Headers are checked against the file's size before memory is allocated. Pickles are not read.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from chop.errors import DataError
from chop.files import check_stored, shown

SUFFIX = ".npy"
SMALL, RATIO = 1 << 28, 16
"""Bytes that any file may expand to, and the factor of its size beyond that."""
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression types that numpy writes."""
NUMBERS = "biuf"
LARGEST_TOKEN = (1 << 31) - 1
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError, OSError, EOFError, ValueError),
    *(SyntaxError, TypeError, OverflowError, RecursionError, RuntimeError, MemoryError, KeyError),
)
"""Errors of zipfile and numpy for damaged files."""


def read_arrays(file: Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a file, or those called `names`; raise if one is not of numbers."""
    try:
        check_stored(file, DataError)
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, file)
            missing = [name for name in names or () if name not in members]
            if missing:
                raise DataError(
                    f"{file}: expected a .npz file with {', '.join(names or ())} "
                    f"({missing[0]} is missing)."
                )
            chosen = members if names is None else {name: members[name] for name in names}
            needed, size = sum(info.file_size for info in chosen.values()), file.stat().st_size
            most = SMALL + RATIO * size
            if needed > most:
                raise DataError(f"{file}: {size} bytes that expand to {needed}. Allowed: {most}.")
            return {
                n: _read(archive, info, f"{file}: array {shown(n)}") for n, info in chosen.items()
            }
    except _DAMAGE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{file}: expected a .npz file of arrays of numbers "
            f"({(str(error).splitlines() or [type(error).__name__])[0][:200]})."
        ) from error


def array_names(file: Path) -> list[str]:
    """Return the names of the arrays of a file; none if it is no `.npz` file."""
    try:
        with zipfile.ZipFile(file) as archive:
            return list(_members(archive, file))
    except _DAMAGE:
        return []


def check_tokens(ids: np.ndarray, where: str) -> None:
    """Raise if `ids` are no tokens: whole numbers from 0 on."""
    if ids.dtype.kind not in "iu":
        raise DataError(f"{where}: {ids.dtype} numbers. Allowed: whole numbers, as tokens are.")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) <= LARGEST_TOKEN:
        raise DataError(
            f"{where}: tokens from {ids.min()} to {ids.max()}. Allowed: 0 to {LARGEST_TOKEN}."
        )


def _members(archive: zipfile.ZipFile, file: Path) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(SUFFIX)
        if (
            name in members
            or not info.filename.endswith(SUFFIX)
            or info.compress_type not in PACKED
        ):
            raise DataError(
                f"{file}: member {shown(info.filename)}: there twice, packed in another way, or no "
                f"{SUFFIX} file."
            )
        members[name] = info
    return members


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> np.ndarray:
    with archive.open(info) as opened:
        shape, fortran, kind = _header(opened, where)  # type: ignore[arg-type]
        if kind.kind not in NUMBERS or kind.itemsize > 8:
            raise DataError(f"{where}: {shown(kind)}. Allowed: numbers of up to 8 bytes.")
        needed = math.prod(shape) * kind.itemsize
        if min(shape, default=0) < 0 or needed != info.file_size - opened.tell():
            raise DataError(
                f"{where}: {info.file_size - opened.tell()} bytes for shape {shown(shape)} of "
                f"{kind}, expected {needed}."
            )
        data = bytearray(opened.read())  # to the end, where zipfile compares the checksum
    if len(data) != needed:
        raise DataError(f"{where}: {len(data)} bytes, expected {needed}.")
    flat = np.frombuffer(data, kind)
    array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    return np.asarray(array, kind.newbyteorder("="), order="C")


def _header(opened: BinaryIO, where: str) -> tuple[tuple[int, ...], bool, Any]:
    version = np.lib.format.read_magic(opened)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise DataError(f"{where}: version {version} of the format. Allowed: (1, 0), (2, 0).")
    header: tuple[tuple[int, ...], bool, Any] = readers[version](opened)
    return header
