"""`mase import`: read a model of another program as a graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from chop.cli.session import Session
from chop.cli.shared_options import POSITIONAL, OutputOptions
from chop.errors import ConfigError

EXAMPLES = (
    "mase import model.gguf --out out/mine",
    "mase import ./model --source compressed-tensors",
)


@dataclass(frozen=True, kw_only=True)
class ImportConfig(OutputOptions):
    """Source."""

    file: Annotated[
        Path | None, "A GGUF, ONNX or torch.export file, or a folder of compressed-tensors."
    ] = field(default=None, metadata=POSITIONAL)
    source: Annotated[
        Literal["gguf", "onnx", "qonnx", "compressed-tensors", "torch.export"] | None,
        "Format of the file. Default: inferred from its contents",
    ] = None
    pack: Annotated[
        bool,
        "Keep the packed weights of a GGUF file packed, in memory and on disk. --no-pack makes "
        "layers that train and can be quantised again.",
    ] = True
    trust_remote_code: Annotated[
        bool, "Read a file of torch.export, which torch reads with pickle."
    ] = False
    out: Path = Path("out/import")


def run(config: ImportConfig, session: Session) -> dict[str, Any]:
    """Read the model, annotate it, save it as a checkpoint with its tokenizer."""
    from chop.cli.checkpoints import GRAPH, save_model
    from chop.cli.model_files import ONNX, check_trust, kind_of
    from chop.cli.source import describe, read_source
    from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass

    if config.file is None:
        raise ConfigError("import.file: missing. Give a GGUF or ONNX file, or a folder.")
    if not config.file.exists():
        raise ConfigError(f"import.file: {config.file}: no such file or folder.")
    kind = config.source or kind_of(config.file) or ONNX
    check_trust(config.file, kind, is_trusted=config.trust_remote_code)
    with session.console.progress(f"read {config.file.name}"):
        source = read_source(config.file, kind, packed=config.pack)
        graph, _ = init_metadata_analysis_pass(source.graph)
        graph, _ = add_common_metadata_analysis_pass(graph)
    session.start_work()
    save_model(session, graph, source.place, save_format="packed")
    size = (session.folder / f"{GRAPH}.safetensors").stat().st_size
    facts = describe(graph, source)
    summary = f"{facts['class']} ({kind}): {facts['nodes']} nodes, {size / 1e6:.0f} MB on disk"
    session.console.say(summary if source.place is None else f"{summary}, with its tokenizer")
    return {**facts, "source": kind, "bytes": size}
