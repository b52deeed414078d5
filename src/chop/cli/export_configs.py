"""The configurations of `mase export` and `mase import`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chop.cli.configs import POSITIONAL, ModelOptions, OutputOptions


@dataclass(frozen=True, kw_only=True)
class ExportConfig(ModelOptions, OutputOptions):
    """Models that other programs load.

    `to`: the program. `format`: the GGUF type of weights that have no format of their own: Q8_0,
    Q4_0, Q4_1, MXFP4, F16, BF16, F32, or a format with such a type, as mxfp4 or int8/32.
    `tokenizer`: folder with a tokenizer.json that goes into a GGUF file. `fallback`: what becomes
    of a format that the target lacks: its values as floats, or for GGUF rounded again; without, it
    is an error.
    """

    to: Literal["onnx", "gguf", "compressed-tensors", "qonnx", "hf"] = "onnx"
    format: str = field(default="Q8_0", metadata={"check": "chop.export.gguf_types:type_named"})
    tokenizer: str | None = None
    fallback: Literal["float", "nearest"] | None = None
    out: Path = Path("out/export")


@dataclass(frozen=True, kw_only=True)
class ImportConfig(OutputOptions):
    """Models of other programs.

    `file`: a GGUF or ONNX file, or a folder of compressed-tensors. `source`: what it is, where its
    contents do not tell.
    """

    file: Path | None = field(default=None, metadata=POSITIONAL)
    source: Literal["gguf", "onnx", "qonnx", "compressed-tensors"] | None = None
    out: Path = Path("out/import")
