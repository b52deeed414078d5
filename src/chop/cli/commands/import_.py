"""`mase import`: read a model of another program as a graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from chop.cli.session import Session
from chop.cli.shared_options import POSITIONAL, OutputOptions
from chop.errors import ConfigError

EXAMPLES = ("mase import model.gguf", "mase import ./model --source compressed-tensors")


@dataclass(frozen=True, kw_only=True)
class ImportConfig(OutputOptions):
    """Source."""

    file: Annotated[Path | None, "A GGUF or ONNX file, or a folder of compressed-tensors."] = field(
        default=None, metadata=POSITIONAL
    )
    source: Annotated[
        Literal["gguf", "onnx", "qonnx", "compressed-tensors"] | None,
        "Format of the file. Default: inferred from its contents",
    ] = None
    out: Path = Path("out/import")


def run(config: ImportConfig, session: Session) -> dict[str, Any]:
    """Read the model, annotate it, save it as a checkpoint."""
    from chop import export
    from chop.cli.checkpoints import save_model
    from chop.cli.source import Source, describe
    from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass

    readers = {
        "gguf": export.from_gguf,
        "onnx": export.from_onnx,
        "qonnx": export.from_qonnx,
        "compressed-tensors": export.from_compressed_tensors,
    }
    if config.file is None:
        raise ConfigError("import.file: missing. Give a GGUF or ONNX file, or a folder.")
    kind = config.source or _kind(config.file)
    with session.console.progress(f"read {config.file.name}"):
        graph = readers[kind](config.file)
        graph, _ = init_metadata_analysis_pass(graph)
        graph, _ = add_common_metadata_analysis_pass(graph)
    session.start_work()
    save_model(session, graph, None, save_format="packed")
    facts = describe(graph, Source(str(config.file), kind, graph=graph))
    session.console.say(f"{facts['class']} ({kind}): {facts['nodes']} nodes")
    return {**facts, "source": kind}


def _kind(file: Path) -> str:
    """Return the format of a file: GGUF starts with its name, every other file is ONNX."""
    from chop.export.gguf_file import MAGIC

    if file.is_dir():
        return "compressed-tensors"
    if not file.is_file():
        raise ConfigError(f"import.file: {file}: no such file or folder.")
    with file.open("rb") as opened:
        return "gguf" if opened.read(len(MAGIC)) == MAGIC else "onnx"
