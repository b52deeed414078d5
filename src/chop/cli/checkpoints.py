"""Checkpoints of commands, with what travels with the model beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.cli.companions import save_companions
from chop.cli.failures import SourceError
from chop.cli.session import Session
from chop.ir.graph import MaseGraph
from chop.ir.store.checkpoint import is_checkpoint

GRAPH = "graph"
"""Name of the checkpoint in an output folder."""
TOKENIZER = "tokenizer"
"""Folder of its tokenizer, its chat template and its preprocessor, beside it."""


def checkpoint_path(path: Path) -> Path | None:
    """Return the checkpoint at `path`, or in the folder `path`; None if there is none."""
    stem = path.name.removesuffix(".json").removesuffix(".safetensors")
    file = path.with_name(f"{stem}.json") if stem else path
    inside = sorted(path.glob("*.json")) if path.is_dir() else []
    checkpoints = [each for each in (file, *inside) if is_checkpoint(each)]
    if len(checkpoints) > 1 and path.is_dir():
        names = ", ".join(each.stem for each in checkpoints)
        raise SourceError(f"{path}: several checkpoints ({names}). Name one: {checkpoints[0]}.")
    return checkpoints[0] if checkpoints else None


def tokenizer_beside(checkpoint: Path) -> str | None:
    """Return the folder that was saved with a checkpoint for its tokenizer, or None."""
    folder = checkpoint.parent / TOKENIZER
    return str(folder) if folder.is_dir() else None


def save_model(
    session: Session, graph: MaseGraph, tokenizer: str | None = None, **options: Any
) -> None:
    """Write the checkpoint of a command, and what travels with the model at `tokenizer`."""
    session.graph = graph
    graph.export(session.folder / GRAPH, **options)
    save_companions(tokenizer, session.folder / TOKENIZER)
