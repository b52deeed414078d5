"""Identity of a run, and the folder of the state from which it resumes.

The identity holds the contents of the model, the contents of the data and the settings, not the
paths of model and data. Runs with different identities have different folders.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from chop.actions.run_fingerprint import LENGTH, data_fingerprint, graph_fingerprint
from chop.cli.data import Data
from chop.cli.settings import identity
from chop.files import remove_whole, write_whole
from chop.ir.graph import MaseGraph

RUN = "run.json"
"""File with the identity, in the folder of a run."""
NAMED = (
    *("model", "dataset", "tokenizer", "classes", "model_options", "inputs", "input_shape"),
    "plugins",
)
"""Settings that name a model or data: the identity holds their contents instead."""


def run_identity(
    config: Any, graph: MaseGraph, data: Data, leave_out: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the facts that two equal runs share, without the settings `leave_out`."""
    unused = {*NAMED, *leave_out}
    settings = {key: value for key, value in identity(config).items() if key not in unused}
    contents = {"model": graph_fingerprint(graph), "data": data_fingerprint(data.splits)}
    facts: dict[str, Any] = json.loads(json.dumps({**contents, **settings}, default=str))
    return facts


def run_folder(parent: Path, facts: Mapping[str, Any], *, resume: bool) -> Path:
    """Return the folder of a run below `parent`; without `resume` it is emptied first."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    folder = parent / digest[:LENGTH]
    if not resume:
        remove_whole(folder)
    write_whole(folder / RUN, json.dumps(facts, indent=2))
    return folder
