"""Compiled decode steps of language models, from a package above this one.

`chop` registers the function that imports the compiler, so that nothing is imported before the
first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class DecodeStep(Protocol):
    """Decode step of one model."""

    problem: str | None
    """Reason why every step runs in PyTorch, or None."""

    def run(self, arguments: Mapping[str, Any]) -> Any:
        """Return the model's output, or None for a call that the step does not cover."""


Compiler = Callable[[Any], DecodeStep]
_LOADERS: list[Callable[[], Compiler]] = []


def load_compiler_by(loader: Callable[[], Compiler]) -> None:
    """Call `loader`, which imports the compiler of decode steps, at the first step."""
    _LOADERS[:] = [loader]


def decode_step(model: Any) -> DecodeStep:
    """Return the compiled decode step of a captured model."""
    assert _LOADERS, "chop registers a compiler of decode steps"
    return _LOADERS[0]()(model)
