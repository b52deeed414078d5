"""A search as one value: the plan that a user gives, and what every worker is given of it."""

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
from chop.search.space import Space, Value
from chop.search.trial import Evaluate

FOLDER = Path("out/search")
"""Where a study is kept when no storage is named."""
KINDS = {
    "space": an(Space),
    "evaluate": FUNCTION | TEXT,
    "objectives": MAPPING,
    "name": TEXT,
    "storage": PATH | NONE,
    "directory": PATH | NONE,
    "timeout": NUMBER | NONE,
    "initial": MANY,
    **dict.fromkeys(("trials", "seed", "workers", "retries", "heartbeat_seconds"), WHOLE),
}
"""What the parts of a plan may be."""


@dataclass(frozen=True)
class SearchPlan:
    """What to search, how, and how much.

    `evaluate(point, trial)` gives a value for each of `objectives`, or is "module:function" of one
    that does. The study `name` is in `storage`: a SQLite file (by default), a `*.journal` file or a
    `postgresql://` URL; the files of its trials are in `directory`. `trials` different points are
    evaluated, those of earlier runs included, `initial` ones first, until `timeout` seconds are
    over. With `workers` above 1, as many processes (or Ray actors, `engine="ray"`) share the work;
    a trial whose worker dies is tried again `retries` times, and `heartbeat_seconds` say how often
    a worker on another machine tells that it lives.

    A study belongs to one space, one set of objectives and, where it is given, one `about`: plain
    facts of what is searched, such as fingerprints of model and data.
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
    timeout: float | None = None
    retries: int = 2
    initial: Sequence[Mapping[str, Value]] = ()
    heartbeat_seconds: int = 60
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            check(f"search: {name}", kind, getattr(self, name))
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(f"search: timeout is {self.timeout} seconds. Allowed: above 0.")
        if self.workers < 1:
            raise ConfigError(f"search: workers is {self.workers}. Allowed: 1 or more.")

    @property
    def folder(self) -> Path:
        """Where the files of trials go: by default beside the file that keeps the study."""
        if self.directory is not None:
            return Path(self.directory).absolute()
        has_file = self.storage is not None and "://" not in str(self.storage)
        home = Path(str(self.storage)).parent if has_file else FOLDER
        return (home / self.name).absolute()

    def start(self) -> WorkerPlan:
        """What the workers are given, from now on."""
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
        )


def make_plan(
    plan: SearchPlan | Space | None,
    evaluate: Evaluate | str | None = None,
    objectives: Mapping[str, str] | None = None,
    **settings: Any,
) -> SearchPlan:
    """`plan` itself, or the plan whose parts are given one by one; an unknown one is an error."""
    if isinstance(plan, SearchPlan):
        if evaluate is not None or objectives is not None or settings:
            raise ConfigError("search: a SearchPlan holds everything; give nothing beside it.")
        return plan
    space = settings.pop("space", None) if plan is None else plan
    if space is None or evaluate is None:
        raise ConfigError("search: expected a SearchPlan, or a space and a function to evaluate.")
    known = [f.name for f in dataclasses.fields(SearchPlan)]
    for name in settings:
        if name not in known:
            raise ConfigError(f"search: unknown setting '{name}'. {suggest(name, known)}")
    if "trials" not in settings:
        raise ConfigError("search: trials is not given: how many points to evaluate.")
    given = {k: v for k, v in {"objectives": objectives, **settings}.items() if v is not None}
    return SearchPlan(space, evaluate, **given)


@dataclass(frozen=True)
class WorkerPlan:
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
