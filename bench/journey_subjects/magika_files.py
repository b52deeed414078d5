"""Files with known extensions for magika, from the Python installation.

Labels: the type of the extension. Rows: the first and the last 1024 bytes, as magika reads them.
"""

from __future__ import annotations

import functools
import json
import os
import sysconfig
from pathlib import Path

import torch

from chop.dataset import DATASETS, ArrayDataset

TYPES = {
    ".py": "python", ".pyc": "pythonbytecode", ".so": "elf", ".json": "json", ".md": "markdown",
    ".rst": "rst", ".toml": "toml", ".yaml": "yaml", ".html": "html", ".css": "css",
    ".js": "javascript", ".xml": "xml", ".svg": "svg", ".png": "png", ".jpg": "jpeg",
    ".gif": "gif", ".csv": "csv", ".sh": "shell", ".c": "c", ".cpp": "cpp", ".ttf": "ttf",
    ".npz": "npz", ".npy": "npy", ".gz": "gzip", ".onnx": "onnx", ".ipynb": "ipynb",
    ".f90": "fortran", ".parquet": "parquet", ".wav": "wav", ".zip": "zip", ".pdf": "pdf",
}  # fmt: skip
"""Extension -> type, for extensions that have one type."""
EACH = 24
"""Files of each type; a third of them are test rows."""
END, BLOCK, PADDING, LEAST = 1024, 4096, 256, 200


@DATASETS.entry("magika-files")
@functools.cache
def files() -> dict[str, ArrayDataset]:
    """Return bytes of files and their types; every third file of a type is a test row."""
    folder = Path(os.environ["MASE_MODELS"], "magika/magika/models/standard_v3_3")
    names = json.loads((folder / "config.min.json").read_text())["target_labels_space"]
    places = [Path(sysconfig.get_path(name)) for name in ("purelib", "stdlib")]
    found = sorted({f for place in places for f in place.rglob("*") if f.suffix in TYPES})
    rows: dict[str, list[tuple[list[int], int]]] = {"train": [], "test": []}
    for suffix, kind in TYPES.items():
        fits = [f for f in found if f.suffix == suffix and f.stat().st_size >= LEAST]
        for number, file in enumerate(fits[:: max(len(fits) // EACH, 1)][:EACH]):
            split = rows["test" if number % 3 == 0 else "train"]
            split.append((_features(file.read_bytes()), names.index(kind)))
    return {name: _dataset(split) for name, split in rows.items()}


def _features(content: bytes) -> list[int]:
    """Return the bytes that magika looks at, padded."""
    first, last = content[:BLOCK].lstrip()[:END], content[-BLOCK:].rstrip()[-END:]
    head, tail = [PADDING] * (END - len(first)), [PADDING] * (END - len(last))
    return [*first, *head, *tail, *last]


def _dataset(rows: list[tuple[list[int], int]]) -> ArrayDataset:
    inputs, labels = zip(*rows, strict=True)
    columns = {"bytes": torch.tensor(inputs, dtype=torch.int32), "labels": torch.tensor(labels)}
    return ArrayDataset(columns)
