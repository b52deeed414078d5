"""Models in files of other programs: how each kind is recognised and read.

To add a kind, add a row to `READERS` and its mark to `kind_of`.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chop import export
from chop.cli.failures import SourceError
from chop.errors import ChopError, ExportError
from chop.export.gguf_file import MAGIC
from chop.files import read_json
from chop.ir.graph import MaseGraph

GGUF, ONNX, QONNX, COMPRESSED = "gguf", "onnx", "qonnx", "compressed-tensors"
PROGRAM = "torch.export"
CONFIG = "config.json"
ONNX_START = b"\x08"
"""First byte of most ONNX files: the tag of the field `ir_version`."""


def _read_gguf(path: Path, packed: bool) -> MaseGraph:
    return export.from_gguf(path, cache=True, packed=packed)


READERS: dict[str, Callable[[Path, bool], MaseGraph]] = {
    GGUF: _read_gguf,
    ONNX: lambda path, packed: export.from_onnx(path),
    QONNX: lambda path, packed: export.from_qonnx(path),
    COMPRESSED: lambda path, packed: export.from_compressed_tensors(path),
    PROGRAM: lambda path, packed: export.from_exported_program(path),
}
"""Kind -> function that reads it; True keeps packed weights packed."""


def kind_of(path: Path) -> str | None:
    """Return the kind of a file or folder by its content, None if it is none of `READERS`."""
    if path.is_dir():
        return COMPRESSED if _is_compressed(path) else None
    if not path.is_file():
        return None
    with path.open("rb") as opened:
        start = opened.read(len(MAGIC))
    if start == MAGIC:
        return GGUF
    if zipfile.is_zipfile(path):
        return _kind_of_archive(path)
    return ONNX if path.suffix == ".onnx" or start[:1] == ONNX_START else None


def _is_compressed(folder: Path) -> bool:
    file = folder / CONFIG
    content = read_json(file, ExportError) if file.is_file() else {}
    settings = content.get("quantization_config") if isinstance(content, dict) else None
    return isinstance(settings, dict) and settings.get("quant_method") == COMPRESSED


PROGRAM_MARK = "archive_format"
"""File in an archive of torch.export."""
BUILD_IT = "Give the function that builds the model (file.py:function)"
REFUSED = (
    (
        "constants.pkl",
        "a TorchScript program: reading it runs the code in the file, and it has operators in "
        f"place of layers. {BUILD_IT}, or, if you trust the file, write it as ONNX: "
        "torch.onnx.export(torch.jit.load(path), inputs, 'model.onnx', dynamo=False).",
    ),
    (
        "data.pkl",
        "a file of torch.save, whose pickle can run code when it is read, and which has weights "
        f"without the code of the model. {BUILD_IT}, which may load the weights with "
        "torch.load(path, weights_only=True).",
    ),
)
"""Archives of torch that are refused: a file inside, and the reason with the remedy."""


def _kind_of_archive(path: Path) -> str | None:
    """Return the kind of a zip archive; raise for one of torch that is refused.

    Nothing in the archive is read but the names of its files.
    """
    names = {name.rpartition("/")[2] for name in zipfile.ZipFile(path).namelist()}
    if PROGRAM_MARK in names:
        return PROGRAM
    for inside, reason in REFUSED:
        if inside in names:
            raise SourceError(f"{path}: {reason}")
    return None


def check_trust(path: Path, kind: str, *, is_trusted: bool) -> None:
    """Raise if reading a file can run code and the user has not allowed it."""
    if kind == PROGRAM and not is_trusted:
        raise SourceError(
            f"{path}: a program of torch.export, which torch reads with pickle: a forged file can "
            "run code. Give --trust-remote-code (in Python trust_remote_code=True) if you trust "
            f"it. {BUILD_IT} otherwise."
        )


def tokenizer_folder(path: Path, kind: str) -> tempfile.TemporaryDirectory[str] | str | None:
    """Return the folder of the tokenizer of a file: its own, or a temporary one; None if none."""
    if kind == COMPRESSED:
        return str(path)
    if kind != GGUF:
        return None
    try:
        tokenizer: Any = export.tokenizer_from_gguf(path)
    except ChopError:  # of a kind that is not read: the command asks for --tokenizer
        return None
    folder = tempfile.TemporaryDirectory(prefix="mase-tokenizer-")
    tokenizer.save_pretrained(folder.name)
    return folder
