"""What a model's Python code decided by a size while it was recorded, and on which line."""

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
    # a batch of one is expanded to one, which changes nothing
    ("transformers/masking_utils.py", "if batch_size != position_ids.shape[0]:"),
    # a single query sees the single key with the causal mask as without
    (
        "transformers/integrations/sdpa_attention.py",
        "is_causal = q_length > 1 and attention_mask is None and is_causal",
    ),
}
"""Lines of models whose one way, taken where the condition holds, is right where it does not.

They are known by their text: where that changes, they are guarded like any other line.
"""


@dataclass(frozen=True)
class Line:
    """A line of the model's code."""

    file: str
    number: int

    def source(self) -> str:
        """What is written there."""
        return linecache.getline(self.file, self.number).strip()

    def path(self) -> str:
        """The file inside its package, without where that is on this machine."""
        _, inside, path = self.file.partition("site-packages/")
        return path if inside else Path(self.file).name

    def __str__(self) -> str:
        source = self.source()
        return f"{self.path()}:{self.number}" + (f": {source}" if source else "")


@dataclass(frozen=True)
class Decision:
    """`operator.name(*operands)`, by whose outcome the model's code went on.

    Of name `rank`, the operands are a tensor and its number of dimensions.
    """

    name: str
    operands: tuple[Any, ...]
    line: Line

    def outcome(self) -> bool:
        """How it came out."""
        return bool(getattr(operator, self.name)(*map(plain, self.operands)))

    def holds_either_way(self) -> bool:
        """Whether what the graph holds, as this came out, is right for the other way as well."""
        return self.outcome() and (self.line.path(), self.line.source()) in HOLDS_EITHER_WAY

    def key(self) -> Any:
        """Equal for the same decision in two runs of a model at the same sizes."""
        values = (o if isinstance(o, int | float) else None for o in self.operands)
        return self.line, self.name, tuple(map(plain, values))


def model_line() -> Line:
    """The innermost line being run that is neither torch's nor this package's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return Line(frame.f_code.co_filename, frame.f_lineno)
