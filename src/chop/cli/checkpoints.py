"""The checkpoint, and what lies beside it, that a path on a command line means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.cli.failures import SourceError
from chop.dataset.tokenized import load_tokenizer
from chop.errors import ChopError
from chop.ir.graph import MaseGraph
from chop.ir.store.checkpoint import is_checkpoint

GRAPH = "graph"
"""The name of a checkpoint in a command's output folder."""
TOKENIZER = "tokenizer"
"""Beside it: the tokenizer that makes the tokens its model reads."""


def checkpoint_path(path: Path) -> Path | None:
    """The checkpoint that `path` is, or that the folder `path` holds."""
    stem = path.name.removesuffix(".json").removesuffix(".safetensors")
    file = path.with_name(f"{stem}.json") if stem else path
    inside = sorted(path.glob("*.json")) if path.is_dir() else []
    found = [each for each in (file, *inside) if is_checkpoint(each)]
    if len(found) > 1 and path.is_dir():
        names = ", ".join(each.stem for each in found)
        raise SourceError(f"{path}: several checkpoints ({names}). Name one: {found[0]}.")
    return found[0] if found else None


def tokenizer_beside(checkpoint: Path) -> str | None:
    """The folder of the tokenizer that was saved with a checkpoint, if one was."""
    folder = checkpoint.parent / TOKENIZER
    return str(folder) if folder.is_dir() else None


def save_model(graph: MaseGraph, folder: Path, tokenizer: str | None, **options: Any) -> None:
    """Write the checkpoint, and beside it the tokenizer that is at the place `tokenizer`."""
    graph.export(folder / GRAPH, **options)
    if tokenizer is None:
        return
    try:
        found = load_tokenizer(tokenizer)
    except ChopError:  # the model reads no text, or its folder has the weights alone
        return
    found.save_pretrained(str(folder / TOKENIZER))
