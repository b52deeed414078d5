"""MASE by its own name: `mase` and everything below it is `chop`, the same objects.

>>> import chop, mase
>>> mase.MaseGraph is chop.MaseGraph
True
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import chop

OWN = ("mase.__main__",)
"""Modules of this package that are its own."""


class SameModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the module `chop.x` to who imports `mase.x`: no module is loaded twice."""

    def __init__(self) -> None:
        self._specs: dict[str, Any] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module below `mase`, where `chop` has it."""
        if not name.startswith("mase.") or name in OWN:
            return None
        found = importlib.util.find_spec(_real(name))
        return None if found is None else importlib.util.spec_from_loader(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module of `chop`, loaded now where it was not."""
        module = importlib.import_module(_real(spec.name))
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing, but that the import system has put the wrong name on the module."""
        wrong = module.__spec__
        assert wrong is not None, "the import system sets it"
        module.__spec__ = self._specs.pop(wrong.name)


def _real(name: str) -> str:
    return f"chop.{name.removeprefix('mase.')}"


def __getattr__(name: str) -> Any:
    return getattr(chop, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(chop), *chop.__all__})


__all__ = list(chop.__all__)
# before the finder of files, which would load those of `chop` a second time
sys.meta_path.insert(0, SameModule())
