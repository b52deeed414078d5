"""Context of a trial: the second argument of an evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from chop.errors import ChopError, ConfigError
from chop.search.space import ParameterValue


class Pruned(ChopError):  # noqa: N818 - an outcome, not a mistake
    """Error of `report` or of the evaluation that ends a trial early; its text is the reason."""


@dataclass
class TrialContext:
    """Trial as its evaluation sees it.

    The engine passes one that is tied to its study. This class only stores the values, so that an
    evaluation can be called and tested without a search.
    """

    number: int = 0
    seed: int = 0
    """Random seed, which depends on the study name and the trial number alone."""
    directory: Path = Path()
    """Folder of this trial for checkpoints; it exists when the evaluation starts."""
    attributes: dict[str, Any] = field(default_factory=dict)
    constraints: dict[str, float] = field(default_factory=dict)
    reports: dict[int, float] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)
    devices: int = 1
    """Devices that the trial may use, as many as the search asks for."""

    def report(self, step: int, value: float) -> None:
        """Report an intermediate value of the first objective; raise `Pruned` if it is too bad."""
        self.reports[step] = value

    @property
    def weighs_expected(self) -> bool:
        """True if values of `expect` can end the trial; computing them may take time."""
        return False

    def expect(self, values: Mapping[str, float]) -> None:
        """Report objectives that are known before the end, such as bytes, for pruning."""
        self.expected |= {name: float(value) for name, value in values.items()}

    def beaten_by(self, values: Mapping[str, float]) -> int | None:
        """Return the number of a trial that is no worse than `values` in any objective, or None."""
        return None

    def attribute(self, key: str, value: Any) -> None:
        """Store `value`, which must be valid JSON, with the trial."""
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"trial {self.number}: attribute '{key}' cannot be written as JSON: {error}."
            ) from error
        self.attributes[key] = value

    def constraint(self, name: str, value: float) -> None:
        """Store a constraint: the trial is feasible if `value` is 0 or less."""
        self.constraints[name] = float(value)


Evaluate: TypeAlias = Callable[[Mapping[str, ParameterValue], TrialContext], Mapping[str, float]]
"""`(point, trial) -> {objective: value}`, with a value for each objective of the search."""


def trial_seed(study: str, number: int) -> int:
    """Return a seed below 2**31 that depends on the study name and the trial number alone.

    >>> trial_seed("study", 0) == trial_seed("study", 0) != trial_seed("study", 1)
    True
    """
    digest = hashlib.sha256(f"{study}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
