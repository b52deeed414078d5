"""Small `.npz` files as datasets are read from, whole and forged."""

from __future__ import annotations

import contextlib
import functools
import io
import random
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from file_kinds import FAITHFUL, OTHER, Forged, Kind
from mutations import damaged

from chop.dataset.data_module import load_splits
from chop.dataset.token_arrays import KEYS
from chop.dataset.token_streams import is_token_stream, load_token_streams
from chop.errors import ChopError

LENGTH = 8
Arrays = dict[str, Any]


def stream(rng: random.Random) -> Arrays:
    """Return running text: one array of tokens."""
    return {"ids": np.array([rng.randrange(100) for _ in range(40)], np.uint16)}


def sequences(rng: random.Random) -> Arrays:
    """Return sequences with a class each."""
    ids = np.array([rng.randrange(100) for _ in range(20)], np.uint16)
    return {"ids": ids, "offsets": np.array([0, 5, 12, 20]), "labels": np.array([0, 1, 1])}


def columns(rng: random.Random) -> Arrays:
    """Return rows of numbers with a class each."""
    values = np.array([[rng.random() for _ in range(4)] for _ in range(6)], np.float32)
    return {"x": values, "labels": np.arange(6) % 3}


SHAPES = {"stream": stream, "sequences": sequences, "columns": columns}
SCALARS = (np.nan, np.inf, -1, 2.5, 2**31, -(2**63), 0)
TYPES = (
    np.float64,
    np.float32,
    np.float16,
    np.int8,
    bool,
    np.complex64,
    ">i4",
    "S4",
    "U3",
    "M8[s]",
)
TYPES += (np.uint64, "f2", "V8", object, np.longdouble)
HEADERS = (
    "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (-5,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<i8', 'fortran_order': True, 'shape': (2, 2), }",
    "{'descr': [('a', '<i8'), ('b', '|O')], 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (2**40,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (" + "(" * 2000 + ", }",
    "{'descr': '<i8', 'shape': (3L,), 'fortran_order': False}",
    "__import__('os').system('true')",
    "{'descr': '\x1b[31m', 'fortran_order': False, 'shape': (3,)}",
    "{",
)


def changed(array: Any, rng: random.Random) -> Any:
    """Return an array of another type, shape or values."""
    array = np.asarray(array)
    if not array.size or not array.ndim or array.dtype.kind == "V":
        return array  # was changed before
    choice = rng.randrange(5)
    if choice == 0:
        with np.errstate(all="ignore"):
            return array.astype(rng.choice(TYPES))
    if choice == 1:
        return rng.choice(
            (array.reshape(-1, 1), array[:0], array.reshape(-1)[0], array[:-1], array.T)
        )
    wide = array.astype(np.float64 if choice < 4 else np.int64)
    with np.errstate(all="ignore"):
        scalar = np.array(rng.choice(SCALARS)).astype(wide.dtype)
    wide.reshape(-1)[rng.randrange(wide.size)] = scalar
    return wide


def member(array: Any, rng: random.Random) -> bytes:
    """Return the bytes of a `.npy` file, with a forged header now and then."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), allow_pickle=True)
    if rng.random() < 0.85:
        return out.getvalue()
    text = rng.choice(HEADERS).encode("latin1") + b"\n"
    data = rng.choice((b"", b"\1" * 24, b"\0" * 4096))
    return (
        b"\x93NUMPY"
        + bytes([rng.choice((1, 1, 1, 2, 3, 9)), 0])
        + struct.pack("<H", len(text))
        + text
        + data
    )


def archive(arrays: Arrays, rng: random.Random) -> bytes:
    """Return the bytes of a `.npz` file."""
    out = io.BytesIO()
    packing = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    packing = packing if rng.random() < 0.2 else rng.choice((0, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", packing) as opened:
        for name, array in arrays.items():
            end = rng.choice(("", ".txt", "/", "\x1b[2J.npy")) if rng.random() < 0.04 else ".npy"
            opened.writestr(f"{name}{end}", member(array, rng))
    return out.getvalue()


def bomb(times: int = 5) -> bytes:
    """Return a small archive whose one array takes `times` times 64 MiB."""
    out = io.BytesIO()
    count = times << 23
    head = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({count},), }}\n".encode()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as opened,
        opened.open("ids.npy", "w") as to,
    ):
        to.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head)
        for _ in range(times):
            to.write(bytes(1 << 26))
    return out.getvalue()


def judged(folder: Path, rng: random.Random) -> str:
    """Write a forged file, read it as a dataset, and compare with what numpy reads."""
    name = rng.choice(list(SHAPES))
    arrays = SHAPES[name](rng)
    for _ in range(rng.choice((0, 1, 1, 2))):
        key = rng.choice(list(arrays))
        choice = rng.randrange(8)
        if choice < 5:
            arrays[key] = changed(arrays[key], rng)
        elif choice == 5 and len(arrays) > 1:
            del arrays[key]
        else:
            arrays[rng.choice(("labels", "input_ids", "\x1b[31m", "ids", "a/b"))] = arrays[key]
    data = archive(arrays, rng)
    file = folder / "train.npz"
    file.write_bytes(damaged(data, rng) if rng.random() < 0.25 else data)
    if is_token_stream(folder):
        rows = load_token_streams(folder, LENGTH)["train"].columns["input_ids"]
        found: Arrays = {"ids": rows.reshape(-1)}
        tokens = "ids"
    else:
        split = load_splits(str(folder))["train"]
        split[0]
        held = getattr(split, "columns", None)
        found = {key: getattr(split, key) for key in KEYS} if held is None else held
        tokens = "ids" if held is None else "input_ids"  # other columns are plain numbers
    return FAITHFUL if is_faithful(file, found, tokens) else OTHER


def is_faithful(file: Path, found: Arrays, tokens: str) -> bool:
    """Return whether what was read is what numpy reads, and tokens are whole numbers from 0 on."""
    with np.load(file, allow_pickle=False) as stored:
        for name, value in found.items():
            wanted, given = stored[name], np.asarray(value)
            is_same = np.array_equal(
                given,
                wanted.reshape(-1)[: given.size].reshape(given.shape),
                equal_nan=name not in (tokens, "labels") and wanted.dtype.kind == "f",
            )
            is_token = name != tokens or bool((torch.as_tensor(given.astype(np.int64)) >= 0).all())
            if not is_same or not is_token or wanted.dtype.kind not in "biuf":
                return False
    return True


def with_ids(values: Any) -> bytes:
    """Return a file of running text with these tokens."""
    out = io.BytesIO()
    np.savez(out, ids=np.asarray(values))
    return out.getvalue()


def forged_files() -> list[Forged]:
    """Return files with tokens that are none, and with more than their bytes."""

    def write(make: Any, folder: Path) -> None:
        (folder / "train.npz").write_bytes(make())

    def row(name: str, make: Any, words: str) -> Forged:
        return Forged(f"npz: {name}", functools.partial(write, make), _read, words)

    tokens = [1.0] * 15 + [np.nan]
    return [
        row("NaN tokens", lambda: with_ids(tokens), "float64 numbers. Allowed: whole numbers"),
        row("negative tokens", lambda: with_ids([-1] * 16), "tokens from -1 to -1"),
        row("tokens beyond 32 bits", lambda: with_ids([1 << 40] * 16), "tokens from"),
        row("text", lambda: with_ids(["a"] * 16), "Allowed: numbers of up to 8 bytes"),
        row("a matrix", lambda: with_ids(np.zeros((4, 4), np.int64)), "Allowed: one dimension"),
        row("a bomb", bomb, r"bytes that expand to 33\d+"),
    ]


def _read(folder: Path) -> Any:
    return load_token_streams(folder, LENGTH)


def warm_up() -> None:
    """Read valid files."""
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(20):
            with contextlib.suppress(ChopError):
                judged(Path(folder), random.Random(seed))


KINDS = {"npz": Kind(judged, 0.06)}
