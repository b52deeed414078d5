"""Plan of a search, and the part of it that workers need."""

from __future__ import annotations

import dataclasses
import importlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler

from chop.actions.trials import DIRECTIONS
from chop.arguments import FUNCTION, MANY, MAPPING, NONE, NUMBER, PATH, TEXT, WHOLE, an, check
from chop.errors import ConfigError
from chop.registry import suggest
from chop.search.space import ParameterValue, Space
from chop.search.trial import Evaluate

FOLDER = Path("out/search")
"""Default folder of studies."""
KINDS = {
    "space": an(Space),
    "evaluate": FUNCTION | TEXT,
    "objectives": MAPPING,
    "name": TEXT,
    "storage": PATH | NONE,
    "directory": PATH | NONE,
    "timeout": NUMBER | NONE,
    "initial": MANY,
    **dict.fromkeys(
        ("trials", "seed", "workers", "devices", "retries", "heartbeat_seconds"), WHOLE
    ),
}
"""Kinds of the fields of a plan."""


@dataclass(frozen=True)
class SearchPlan:
    """Space, evaluation, objectives and resources of a search.

    `evaluate(point, trial)` returns a value for each of `objectives`, or is the name
    "module:function" of such a function. The study `name` is in `storage`: a SQLite file (default),
    a `*.journal` file or a `postgresql://` URL. The files of its trials are in `directory`. The
    search evaluates `trials` different points, those of earlier runs included, `initial` ones
    first, until `timeout` seconds have passed. With `workers` above 1, processes (or Ray actors,
    `engine="ray"`) share the work. A trial that trains on several `devices` gets them from Ray as a
    placement group on one machine. A trial whose worker dies is retried `retries` times.
    `heartbeat_seconds` is the time between heartbeats of a worker.

    A study belongs to one space, one set of objectives and one `about`: plain facts of the subject,
    such as fingerprints of model and data.
    """

    space: Space
    evaluate: Evaluate | str
    objectives: Mapping[str, str] = field(default_factory=lambda: {"accuracy": "maximize"})
    _: KW_ONLY
    trials: int
    name: str = "search"
    sampler: str | BaseSampler = "tpe"
    pruner: str | BasePruner = "none"
    storage: str | Path | None = None
    directory: str | Path | None = None
    seed: int = 0
    workers: int = 1
    engine: str = "processes"
    devices: int = 1
    timeout: float | None = None
    retries: int = 2
    initial: Sequence[Mapping[str, ParameterValue]] = ()
    heartbeat_seconds: int = 60
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            check(f"search: {name}", kind, getattr(self, name))
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(f"search: timeout is {self.timeout} seconds. Allowed: above 0.")
        if self.workers < 1:
            raise ConfigError(f"search: workers is {self.workers}. Allowed: 1 or more.")
        if self.devices < 1:
            raise ConfigError(f"search: devices is {self.devices}. Allowed: 1 or more.")

    @property
    def folder(self) -> Path:
        """Folder of the files of trials: by default next to the file of the study."""
        if self.directory is not None:
            return Path(self.directory).absolute()
        has_file = self.storage is not None and "://" not in str(self.storage)
        home = Path(str(self.storage)).parent if has_file else FOLDER
        return (home / self.name).absolute()

    def start(self) -> WorkerPlan:
        """Return the plan of the workers; the timeout starts now."""
        return WorkerPlan(
            name=self.name,
            space=self.space,
            evaluate=self.evaluate,
            objectives=dict(self.objectives),
            sampler=self.sampler,
            pruner=self.pruner,
            trials=self.trials,
            storage=str(self.storage or FOLDER / f"{self.name}.db"),
            directory=self.folder,
            seed=self.seed,
            retries=self.retries,
            deadline=None if self.timeout is None else time.time() + self.timeout,
            heartbeat_seconds=self.heartbeat_seconds,
            about=dict(self.about),
            devices=self.devices,
        )


def make_plan(
    plan: SearchPlan | Space | None,
    evaluate: Evaluate | str | None = None,
    objectives: Mapping[str, str] | None = None,
    **settings: Any,
) -> SearchPlan:
    """Return `plan` itself, or the plan made of the other arguments."""
    if isinstance(plan, SearchPlan):
        if evaluate is not None or objectives is not None or settings:
            raise ConfigError("search: a SearchPlan holds everything; give nothing beside it.")
        return plan
    space = settings.pop("space", None) if plan is None else plan
    if space is None or evaluate is None:
        raise ConfigError("search: expected a SearchPlan, or a space and a function to evaluate.")
    names = [f.name for f in dataclasses.fields(SearchPlan)]
    for name in settings:
        if name not in names:
            raise ConfigError(f"search: unknown setting '{name}'. {suggest(name, names)}")
    if "trials" not in settings:
        raise ConfigError("search: trials is not given: how many points to evaluate.")
    parts = {k: v for k, v in {"objectives": objectives, **settings}.items() if v is not None}
    return SearchPlan(space, evaluate, **parts)


@dataclass(frozen=True)
class WorkerPlan:
    """Plan of a search as a worker needs it."""

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
    """Time after which no trial starts, in seconds since the epoch."""
    heartbeat_seconds: int = 60
    about: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the subject, as plain data; a study with other facts is another study."""
    devices: int = 1
    """Devices that one trial uses."""
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Random id of this start of the search."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ConfigError(f"search: name is '{self.name}'. Allowed: text without '/'.")
        if not self.space.dimensions:
            raise ConfigError("search: the space has no dimensions.")
        for name, least in (("trials", 1), ("retries", 0), ("heartbeat_seconds", 1)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"search: {name} is {value}. Allowed: {least} or more.")
        check_objectives(self.objectives)

    @property
    def sampler_name(self) -> str:
        """Name of the sampler in records."""
        return self.sampler if isinstance(self.sampler, str) else type(self.sampler).__name__


def check_objectives(objectives: Mapping[str, str]) -> None:
    """Raise if there is no objective or a direction is unknown."""
    if not objectives:
        raise ConfigError("search: no objective is given. Example: {'accuracy': 'maximize'}.")
    for name, direction in objectives.items():
        if direction not in DIRECTIONS:
            hint = suggest(direction, DIRECTIONS)
            raise ConfigError(f"search: objective '{name}' is to '{direction}'. {hint}")


def load_evaluate(evaluate: Evaluate | str) -> Evaluate:
    """Return `evaluate` itself, or the function that `"module:function"` names."""
    if not isinstance(evaluate, str):
        return evaluate
    module, _, function = evaluate.partition(":")
    try:
        target: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"search: evaluate is '{evaluate}'. Allowed: 'module:function' of a function that can "
            f"be imported ({error})."
        ) from error
    if not callable(target):
        raise ConfigError(f"search: evaluate '{evaluate}' is a {type(target).__name__}.")
    return target  # type: ignore[no-any-return]
