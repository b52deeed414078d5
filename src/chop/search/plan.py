"""A search as one value: what every worker is given."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler

from chop.actions.trials import DIRECTIONS
from chop.errors import ConfigError
from chop.registry import suggest
from chop.search.space import Space
from chop.search.trial import Evaluate


@dataclass(frozen=True)
class Plan:
    """Everything a worker needs to take part in a search."""

    name: str
    space: Space
    evaluate: Evaluate | str
    objectives: Mapping[str, str]
    sampler: str | BaseSampler
    pruner: str | BasePruner
    trials: int
    storage: str
    directory: Path
    seed: int = 0
    retries: int = 2
    deadline: float | None = None
    """When to start no more trials, in seconds since the epoch."""
    heartbeat_seconds: int = 60
    about: Mapping[str, Any] = field(default_factory=dict)
    """Facts of what is searched, as plain data; a study with other facts is another study."""
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Different each time the search is started."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ConfigError(f"search: name is '{self.name}'. Allowed: text without '/'.")
        if not self.space.dimensions:
            raise ConfigError("search: the space has no dimensions.")
        for name, least in (("trials", 1), ("retries", 0), ("heartbeat_seconds", 1)):
            if getattr(self, name) < least:
                given = getattr(self, name)
                raise ConfigError(f"search: {name} is {given}. Allowed: {least} or more.")
        check_objectives(self.objectives)

    @property
    def sampler_name(self) -> str:
        """The sampler as records show it."""
        named = isinstance(self.sampler, str)
        return str(self.sampler) if named else type(self.sampler).__name__


def check_objectives(objectives: Mapping[str, str]) -> None:
    """Refuse an empty mapping and a direction that is not one."""
    if not objectives:
        raise ConfigError("search: no objective is given. Example: {'accuracy': 'maximize'}.")
    for name, direction in objectives.items():
        if direction not in DIRECTIONS:
            hint = suggest(direction, DIRECTIONS)
            raise ConfigError(f"search: objective '{name}' is to '{direction}'. {hint}")


def load_evaluate(evaluate: Evaluate | str) -> Evaluate:
    """`evaluate` itself, or the function that `"module:function"` names."""
    if not isinstance(evaluate, str):
        return evaluate
    module, _, function = evaluate.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"search: evaluate is '{evaluate}'. Allowed: 'module:function' of a function that can "
            f"be imported ({error})."
        ) from error
    if not callable(found):
        raise ConfigError(f"search: evaluate '{evaluate}' is a {type(found).__name__}.")
    return found  # type: ignore[no-any-return]
