"""MASE by its own name: the modules of `chop`, and every command as a Python function.

>>> import chop, mase
>>> mase.MaseGraph is chop.MaseGraph
True

`mase.quantize(model, bits=4, method="gptq", dataset="digits")` is the command `mase quantize` with
the same options. It prints nothing and returns the record of the run with its graph. `import` and
`pass` are `mase.import_` and `mase.pass_`. `help(mase.quantize)` shows the options. The packages
`mase.export`, `mase.hw`, `mase.report`, `mase.search` and `mase.serve` can be called in the same
way.

`mase.load(model)` returns a model in any form that the commands take as a graph, and
`mase.load_tokenizer(model)` its tokenizer.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import chop
from chop.cli.commands import COMMANDS, Command
from chop.cli.session import CommandResult

OWN = ("mase.__main__",)
"""Modules that belong to this package and not to `chop`."""
FUNCTIONS = {command.function_name: command for command in COMMANDS.values()}
"""Name in Python -> command."""


@functools.cache
def _function(command: Command) -> Any:
    from chop.cli.functions import function_of  # imported late: it imports argparse and more

    return function_of(command)


class CommandPackage(ModuleType):
    """A package of `chop` that has the name of a command and runs it when it is called."""

    def __call__(self, *arguments: Any, **options: Any) -> CommandResult:
        """Run the command of the package's name."""
        result: CommandResult = _function(self._command)(*arguments, **options)
        return result

    @property
    def _command(self) -> Command:
        return FUNCTIONS[self.__name__.rpartition(".")[2]]

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function(self._command))


class SameModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that returns the module `chop.x` for `mase.x`, so that none is loaded twice."""

    def __init__(self) -> None:
        self._specs: dict[str, Any] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module below `mase` that `chop` has."""
        if not name.startswith("mase.") or name in OWN:
            return None
        spec = importlib.util.find_spec(_real(name))
        return None if spec is None else importlib.util.spec_from_loader(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Import the module of `chop`."""
        module = importlib.import_module(_real(spec.name))
        self._specs[spec.name] = module.__spec__
        if spec.name.removeprefix("mase.") in FUNCTIONS:
            module.__class__ = CommandPackage
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec of the module, which the import system has replaced."""
        wrong = module.__spec__
        assert wrong is not None, "the import system sets it"
        module.__spec__ = self._specs.pop(wrong.name)


def _real(name: str) -> str:
    return f"chop.{name.removeprefix('mase.')}"


LOADERS = ("load", "load_tokenizer")
"""Functions that are no commands: they return a graph or a tokenizer."""


def __getattr__(name: str) -> Any:
    if name in LOADERS:
        from chop.cli import loading  # imported late: it imports torch

        return getattr(loading, name)
    if name not in FUNCTIONS:
        return getattr(chop, name)
    if importlib.util.find_spec(f"chop.{name}") is None:
        return _function(FUNCTIONS[name])
    return importlib.import_module(f"mase.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(chop), *chop.__all__, *FUNCTIONS, *LOADERS})


__all__ = list(chop.__all__)
"""The names of `chop`; commands are left out, because `list`, `eval` and `compile` are builtins."""
# before the finder of files, which would load the modules of `chop` a second time
sys.meta_path.insert(0, SameModule())
