"""New weights for an emitted design: `reload/weights.mem`, and the outputs that they give.

The design of the new model must be the emitted one but for the words of the memories that can be
written. Then these words are all that a host has to send (`reload_host.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chop.errors import HardwareError
from chop.files import read_json
from chop.hw.design.component import Memory
from chop.hw.design.design import Design
from chop.hw.design.memories import memory_text, read_inputs, vector_files
from chop.hw.design.reload import PIECE_BITS, all_pieces, checksum
from chop.hw.sim.emit import describe, read_interface, write_files

FOLDER = "reload"
SHOWN = 4
"""Differences of two designs in an error."""


def emit_new_weights(directory: Path, design: Design) -> list[str]:
    """Write the weights of `design` for the design emitted in `directory`; return the file names.

    `weights.mem` has the pieces in their order and their checksum, one hexadecimal word per line.
    Beside it are the outputs for the inputs in `test/`. Raise if the designs differ in more than
    the memories that can be written.
    """
    interface = read_interface(directory)
    if interface.reload is None:
        raise HardwareError(
            f"{directory}: no memory of this design can be written. Emit it with --weights reload."
        )
    require_same_design(directory, design)
    pieces = all_pieces(design.reloaded_memories)
    words = Memory("weights", (*pieces, checksum(pieces)), PIECE_BITS)
    vectors = vector_files(design, read_inputs(directory, interface))
    files = {f"{FOLDER}/weights.mem": memory_text(words)}
    files |= {f"{FOLDER}/{port}.mem": vectors[f"test/{port}.mem"] for port in interface.outputs}
    write_files(directory, files)
    return sorted(files)


def require_same_design(directory: Path, design: Design) -> None:
    """Raise unless `design` is that in `directory`, but for the memories that can be written."""
    emitted = read_json(directory / "design.json", HardwareError)
    problems = list(_differences(emitted, json.loads(json.dumps(describe(design)))))
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise HardwareError(
            f"{directory}: these weights need another design: {'; '.join(problems[:SHOWN])}{more}. "
            f"Use the options and number formats of the emitted model, or emit a new design."
        )


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for side in ("inputs", "outputs"):
        for name in old[side].keys() | new[side].keys():
            if old[side].get(name) != new[side].get(name):
                yield f"port '{name}' has another stream"
    stages = [{stage["name"]: stage for stage in each["stages"]} for each in (old, new)]
    if list(stages[0]) != list(stages[1]):
        alone = sorted(stages[0].keys() ^ stages[1].keys()) or ["their order"]
        yield f"other stages ({', '.join(alone[:SHOWN])})"
        return
    written = [_reload_places(each) for each in (old, new)]
    if written[0] != written[1]:
        yield "other memories can be written"
    for name, stage in stages[0].items():
        yield from _unlike_stage(stage, stages[1][name], written[0])


def _reload_places(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(row["stage"], row["memory"]) for row in record.get("reload", {}).get("memories", [])]


def _unlike_stage(
    old: Mapping[str, Any], new: Mapping[str, Any], written: list[tuple[str, str]]
) -> Iterator[str]:
    where = f"stage '{old['name']}'"
    for name in ("module", "sources", "outputs"):
        if old[name] != new[name]:
            yield f"{where}: {name} {new[name]} instead of {old[name]}"
    for name in old["parameters"].keys() | new["parameters"].keys():
        before, after = (each["parameters"].get(name) for each in (old, new))
        if before != after:
            yield f"{where}: {name} is {after!s:.40} instead of {before!s:.40}"
    for name in old["memories"].keys() | new["memories"].keys():
        before, after = (each["memories"].get(name, {}) for each in (old, new))
        if (old["name"], name) not in written and before != after:
            yield f"{where}: the words of '{name}', which cannot be written"
        elif [before.get(k) for k in _SIZE] != [after.get(k) for k in _SIZE]:
            yield f"{where}: the size of '{name}'"


_SIZE = ("words", "width")
