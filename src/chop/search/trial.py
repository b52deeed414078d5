"""What an evaluation is given beside its point, and what it gives back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from chop.errors import ChopError, ConfigError
from chop.search.space import Value


class Pruned(ChopError):  # noqa: N818 - an outcome, not a mistake
    """Raised, out of `report` or by the evaluation, when the trial is not worth finishing.

    What it says is kept as the reason.
    """


@dataclass
class TrialContext:
    """A trial as its evaluation sees it.

    The engine hands in one that is tied to its study. Made by hand it keeps what it is told, so
    that an evaluation can be called, and tested, without a search.
    """

    number: int = 0
    seed: int = 0
    """The same for the same study name and number, on every machine."""
    directory: Path = Path()
    """For checkpoints: a folder of this trial's own, there when the evaluation starts."""
    attributes: dict[str, Any] = field(default_factory=dict)
    constraints: dict[str, float] = field(default_factory=dict)
    reports: dict[int, float] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)

    def report(self, step: int, value: float) -> None:
        """Tell how well it goes; raises `Pruned` when the pruner says that this is enough.

        With several objectives `value` is of the first.
        """
        self.reports[step] = value

    @property
    def weighs_expected(self) -> bool:
        """Whether what `expect` is told may end the trial: finding it out may take time."""
        return False

    def expect(self, values: Mapping[str, float]) -> None:
        """Tell objectives that are known before the end, such as bytes: pruning may weigh them."""
        self.expected |= {name: float(value) for name, value in values.items()}

    def beaten_by(self, values: Mapping[str, float]) -> int | None:
        """The number of a trial that is no worse than `values` in any objective; None: there is
        none. With the best that an objective can still become, that trial makes this one hopeless.
        """
        return None

    def attribute(self, key: str, value: Any) -> None:
        """Keep `value`, which JSON can write, with the trial."""
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"trial {self.number}: attribute '{key}' cannot be written as JSON: {error}."
            ) from error
        self.attributes[key] = value

    def constraint(self, name: str, value: float) -> None:
        """State a constraint: `value` of 0 or less is feasible."""
        self.constraints[name] = float(value)


Evaluate: TypeAlias = Callable[[Mapping[str, Value], TrialContext], Mapping[str, float]]
"""`(point, trial) -> {objective: value}`, a value for each objective of the search."""


def trial_seed(study: str, number: int) -> int:
    """A seed below 2**31 that depends on the study's name and the trial's number alone.

    >>> trial_seed("study", 0) == trial_seed("study", 0) != trial_seed("study", 1)
    True
    """
    digest = hashlib.sha256(f"{study}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
