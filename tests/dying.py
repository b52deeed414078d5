"""A process that dies at a chosen file operation: from there on nothing of it happens any more."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

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
