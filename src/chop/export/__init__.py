"""Exchange of models with other programs: `to_…` writes, `from_…` reads.

Every writer returns an `ExportReport`: the type of each tensor, whether its values are exact, and
the dropped parts of the model. Files are written whole or not at all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chop.export.compressed_tensors import (
        from_compressed_tensors as from_compressed_tensors,
    )
    from chop.export.compressed_tensors import to_compressed_tensors as to_compressed_tensors
    from chop.export.export_report import ExportReport as ExportReport
    from chop.export.exported_program import from_exported_program as from_exported_program
    from chop.export.gguf import to_gguf as to_gguf
    from chop.export.gguf_reader import from_gguf as from_gguf
    from chop.export.gguf_tokenizer import tokenizer_from_gguf as tokenizer_from_gguf
    from chop.export.huggingface import MaseConfig as MaseConfig
    from chop.export.huggingface import to_huggingface as to_huggingface
    from chop.export.lowered import to_exported_program as to_exported_program
    from chop.export.onnx import to_onnx as to_onnx
    from chop.export.onnx import to_qonnx as to_qonnx
    from chop.export.onnx_import.reader import from_onnx as from_onnx
    from chop.export.onnx_import.reader import from_qonnx as from_qonnx

_LAZY = {
    "ExportReport": "export_report",
    "from_compressed_tensors": "compressed_tensors",
    "to_compressed_tensors": "compressed_tensors",
    "MaseConfig": "huggingface",
    "to_gguf": "gguf",
    "to_exported_program": "lowered",
    "to_huggingface": "huggingface",
    "to_onnx": "onnx",
    "to_qonnx": "onnx",
    "from_exported_program": "exported_program",
    "from_gguf": "gguf_reader",
    "tokenizer_from_gguf": "gguf_tokenizer",
    "from_onnx": "onnx_import.reader",
    "from_qonnx": "onnx_import.reader",
}
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
