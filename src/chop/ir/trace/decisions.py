"""Decisions that a model's Python code made by a size while it was recorded."""

from __future__ import annotations

import linecache
import operator
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chop.ir.trace.tracked import plain

_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))

HOLDS_EITHER_WAY = {
    # expanding a batch of one to one changes nothing
    ("transformers/masking_utils.py", "if batch_size != position_ids.shape[0]:"),
    # a single query attends to the single key with and without the causal mask
    (
        "transformers/integrations/sdpa_attention.py",
        "is_causal = q_length > 1 and attention_mask is None and is_causal",
    ),
}
"""Lines of models whose branch for a true condition is also right for a false one.

They are found by their text; if it changes, the line gets a guard like any other.
"""


@dataclass(frozen=True)
class CodeLine:
    """Line of the model's code."""

    file: str
    number: int

    def source(self) -> str:
        """Return its text."""
        return linecache.getline(self.file, self.number).strip()

    def path(self) -> str:
        """Return the path of the file inside its package."""
        _, inside, path = self.file.partition("site-packages/")
        return path if inside else Path(self.file).name

    def __str__(self) -> str:
        source = self.source()
        return f"{self.path()}:{self.number}" + (f": {source}" if source else "")


@dataclass(frozen=True)
class Decision:
    """Decision of the model's code by the outcome of `operator.name(*operands)`.

    For the name `rank`, the operands are a tensor and its number of dimensions.
    """

    name: str
    operands: tuple[Any, ...]
    line: CodeLine

    def outcome(self) -> bool:
        """Return the outcome."""
        return bool(getattr(operator, self.name)(*map(plain, self.operands)))

    def holds_either_way(self) -> bool:
        """Return True if the recorded branch is right for the other outcome too."""
        return self.outcome() and (self.line.path(), self.line.source()) in HOLDS_EITHER_WAY

    def key(self) -> Any:
        """Return a key that is equal for the same decision in two runs at the same sizes."""
        values = (o if isinstance(o, int | float) else None for o in self.operands)
        return self.line, self.name, tuple(map(plain, values))


def model_line() -> CodeLine:
    """Return the innermost running line that belongs neither to torch nor to this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return CodeLine(frame.f_code.co_filename, frame.f_lineno)
