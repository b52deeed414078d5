"""Where a run keeps what it needs to go on: a folder of its own for each question it asks.

The question is the model's contents, the data's contents and the settings, not the paths they were
given by. A run that asks another question has another folder: it neither meets nor blocks the
records of this one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from chop.actions.fingerprint import LENGTH, data_fingerprint, graph_fingerprint
from chop.cli.data import Data
from chop.cli.settings import identity
from chop.files import remove_whole, write_whole
from chop.ir.graph import MaseGraph

RUN = "run.json"
"""In the folder of a run: the question it asks."""
NAMED = (
    *("model", "dataset", "tokenizer", "classes", "model_options", "inputs", "input_shape"),
    "plugins",
)
"""Settings that name a model or data: their contents stand in the question instead."""


def question(
    config: Any, graph: MaseGraph, data: Data, leave_out: Iterable[str] = ()
) -> dict[str, Any]:
    """What makes two runs the same run."""
    unused = {*NAMED, *leave_out}
    settings = {key: value for key, value in identity(config).items() if key not in unused}
    contents = {"model": graph_fingerprint(graph), "data": data_fingerprint(data.splits)}
    whole: dict[str, Any] = json.loads(json.dumps({**contents, **settings}, default=str))
    return whole


def digest(asked: Mapping[str, Any]) -> str:
    """A question as a short text."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:LENGTH]


def run_folder(parent: Path, asked: Mapping[str, Any], *, resume: bool) -> Path:
    """The folder of the run that asks this, below `parent`; without `resume` it starts empty."""
    folder = parent / digest(asked)
    if not resume:
        remove_whole(folder)
    write_whole(folder / RUN, json.dumps(asked, indent=2))
    return folder
