"""A process that dies at a chosen file operation: from there on nothing of it happens any more."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.cli.output import staged
from chop.ir.store import tensors as stored


class Killed(BaseException):
    """The end of the process."""


class Dying:
    """Counts file operations, and dies at number `last`, halfway through a write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
        self.count, self.last = 0, last
        for owner, name in ((os, "replace"), (os, "unlink"), (os, "mkdir"), (os, "fsync")):
            monkeypatch.setattr(owner, name, self._step(getattr(owner, name)))
        monkeypatch.setattr(shutil, "rmtree", self._step(shutil.rmtree))
        monkeypatch.setattr(Path, "touch", self._step(Path.touch))
        monkeypatch.setattr(Path, "write_text", self._write_text(Path.write_text))
        monkeypatch.setattr(stored, "save_file", self._save(stored.save_file))

    def _tick(self) -> bool:
        """Whether this operation is cut short."""
        self.count += 1
        if self.count > self.last:
            raise Killed
        return self.count == self.last

    def _step(self, function: Any) -> Any:
        def step(*args: Any, **options: Any) -> Any:
            if self._tick():
                raise Killed
            return function(*args, **options)

        return step

    def _write_text(self, function: Any) -> Any:
        def write(path: Path, text: str, *args: Any, **options: Any) -> Any:
            if self._tick():
                function(path, text[: len(text) // 2], *args, **options)
                raise Killed
            return function(path, text, *args, **options)

        return write

    def _save(self, function: Any) -> Any:
        def save(tensors: Any, file: Path, *args: Any, **options: Any) -> Any:
            torn = self._tick()
            function(tensors, file, *args, **options)
            if torn:
                data = Path(file).read_bytes()
                with open(file, "wb") as opened:
                    opened.write(data[: len(data) // 2])
                raise Killed

        return save


# -- writing a checkpoint, and dying everywhere ----------------------------------------------------


@functools.cache
def graph(value: float) -> MaseGraph:
    """A graph whose parameters are all `value`."""
    made = MaseGraph(nn.Linear(2, 2), dummy_in=torch.ones(1, 2))
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.fill_(value)
    return made


def held(path: Path) -> float | None:
    """The value of the checkpoint at `path`; None where there is none."""
    if not path.with_suffix(".json").exists():
        return None
    values = {
        float(v)
        for p in MaseGraph.from_checkpoint(path).model.parameters()
        for v in p.detach().view(-1)
    }
    assert len(values) == 1, "parts of two checkpoints"
    return values.pop()


def export(folder: Path, value: float) -> None:
    """Write a checkpoint and nothing else."""
    graph(value).export(folder / "model")


def command(folder: Path, value: float) -> None:
    """Write a checkpoint among other files, as a command does."""
    with staged(folder) as scratch:
        graph(value).export(scratch / "model")
        (scratch / "report").mkdir()
        (scratch / "report" / "page.html").write_text(str(value))
        (scratch / "result.json").write_text(str(value))


@dataclass(frozen=True)
class Death:
    """What was there after a death, and what was still `left` behind after the next write."""

    held: float | None
    left: frozenset[str]


def die_everywhere(
    folder: Path, write: Callable[[Path, float], None], before: float | None
) -> list[Death]:
    """Every point at which `write` of 2.0 can die, where `before` was written first."""
    found: list[Death] = []
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if before is not None:
            write(folder, before)
        with pytest.MonkeyPatch.context() as patch:
            deadly = Dying(patch, last=len(found) + 1)
            try:
                write(folder, 2.0)
            except Killed:
                pass
            else:
                return found
            assert deadly.count > len(found)
        there = held(folder / "model")
        write(folder, 3.0)
        assert held(folder / "model") == 3.0
        ours = {"model.json", "model.safetensors", "report", "result.json"}
        found.append(Death(there, frozenset(p.name for p in folder.iterdir()) - ours))
