"""`mase import`: a file of another program as a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from chop.cli.commands.trace import GRAPH
from chop.cli.configs import ImportConfig
from chop.cli.session import Session
from chop.cli.source import Source, describe
from chop.errors import ConfigError
from chop.export import from_compressed_tensors, from_gguf
from chop.ir.graph import MaseGraph
from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass

READERS: dict[str, Callable[[Path], MaseGraph]] = {
    "gguf": from_gguf,
    "compressed-tensors": from_compressed_tensors,
}


def run(config: ImportConfig, session: Session) -> dict[str, Any]:
    """Read, annotate, save as a checkpoint."""
    if config.file is None:
        raise ConfigError("import.file: missing. Give a .gguf file or a folder.")
    kind = config.source or ("gguf" if config.file.suffix == ".gguf" else "compressed-tensors")
    with session.console.progress(f"read {config.file.name}"):
        graph = READERS[kind](config.file)
        graph, _ = init_metadata_analysis_pass(graph)
        graph, _ = add_common_metadata_analysis_pass(graph)
    graph.export(session.folder / GRAPH, save_format="packed")
    facts = describe(graph, Source(str(config.file), kind, graph=graph))
    session.console.say(f"{facts['class']} ({kind}): {facts['nodes']} nodes")
    return {**facts, "source": kind}
