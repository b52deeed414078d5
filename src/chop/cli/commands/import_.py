"""`mase import`: a file of another program as a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from chop.cli.checkpoints import GRAPH
from chop.cli.export_configs import ImportConfig
from chop.cli.session import Session
from chop.cli.source import Source, describe
from chop.errors import ConfigError
from chop.export import from_compressed_tensors, from_gguf, from_onnx, from_qonnx
from chop.export.gguf_file import MAGIC
from chop.ir.graph import MaseGraph
from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass

READERS: dict[str, Callable[[Path], MaseGraph]] = {
    "gguf": from_gguf,
    "onnx": from_onnx,
    "qonnx": from_qonnx,
    "compressed-tensors": from_compressed_tensors,
}


def _kind(file: Path) -> str:
    """What a file is, by its contents: GGUF says so first, and the rest is ONNX."""
    if file.is_dir():
        return "compressed-tensors"
    if not file.is_file():
        raise ConfigError(f"import.file: {file}: no such file or folder.")
    with file.open("rb") as opened:
        return "gguf" if opened.read(len(MAGIC)) == MAGIC else "onnx"


def run(config: ImportConfig, session: Session) -> dict[str, Any]:
    """Read, annotate, save as a checkpoint."""
    if config.file is None:
        raise ConfigError("import.file: missing. Give a GGUF or ONNX file, or a folder.")
    kind = config.source or _kind(config.file)
    with session.console.progress(f"read {config.file.name}"):
        graph = READERS[kind](config.file)
        graph, _ = init_metadata_analysis_pass(graph)
        graph, _ = add_common_metadata_analysis_pass(graph)
    session.start_work()
    graph.export(session.folder / GRAPH, save_format="packed")
    facts = describe(graph, Source(str(config.file), kind, graph=graph))
    session.console.say(f"{facts['class']} ({kind}): {facts['nodes']} nodes")
    return {**facts, "source": kind}
