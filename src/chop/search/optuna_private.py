"""The one place that uses what Optuna keeps to itself.

Everything here depends on names with an underscore, or on modules with one, which a release of
Optuna may change. `tests/search/test_optuna_private.py` says which releases are known and fails on
another one: look at each name of this file there, then add the release to `KNOWN_RELEASES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
import sqlalchemy
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.samplers._lazy_random_state import LazyRandomState
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.storages.journal._file import BaseJournalFileLock as BaseJournalFileLock
from optuna.trial import FrozenTrial, Trial, TrialState

KNOWN_RELEASES = ("5.0",)
"""Releases of Optuna whose private parts are as this file takes them."""
HISTORY = 200
"""How many past trials TPE looks at: more cost time in every trial and change its mind little."""


# -- numbers of studies and trials in their storage ------------------------------------------------


def study_id(study: Any) -> int:
    """The number of a study in its storage."""
    return int(study._study_id)


def trial_id(trial: Trial | FrozenTrial) -> int:
    """The number of a trial in its storage, which is not its number in the study."""
    return int(trial._trial_id)


def reported_values(trial: Trial) -> Mapping[int, float]:
    """Step -> the value that a running trial reported there."""
    return trial._cached_frozen_trial.intermediate_values


# -- writes that belong together -------------------------------------------------------------------


def insert_parameters(backend: RDBStorage, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write all parameters of a trial in one statement."""
    with _create_scoped_session(backend.scoped_session) as session:
        session.execute(sqlalchemy.insert(models.TrialParamModel), list(rows))


def set_attributes(backend: RDBStorage, trial: int, attributes: Mapping[str, Any]) -> None:
    """Write attributes of a trial in one transaction."""
    with _create_scoped_session(backend.scoped_session) as session:
        for key, value in attributes.items():
            backend._set_trial_attr_without_commit(
                session, models.TrialUserAttributeModel, trial, key, value
            )


def stale_trial_ids(backend: RDBStorage, study: int) -> set[int]:
    """The trials whose heartbeats have stopped, by the server's clock."""
    return set(backend._get_stale_trial_ids(study))


# -- studies and samplers --------------------------------------------------------------------------


class AskTellStudy(optuna.Study):
    """A study driven by ask and tell, whose sampler may ask to stop."""

    is_stopped = False

    def stop(self) -> None:
        """Remember that the sampler has nothing more to propose."""
        self.is_stopped = True

    def _get_trials(
        self, deepcopy: bool = True, states: Any = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        # Within a trial the list is read once: samplers ask for it anew for every dimension.
        return super()._get_trials(deepcopy, states, True)

    def know_trials(self, trials: list[FrozenTrial] | None) -> None:
        """Take `trials` for the list until the next trial; None: read it when it is asked for."""
        self._thread_local.cached_all_trials = trials


class _RecentStudy:
    """A study as the sampler of one trial sees it: the best and the latest of its trials."""

    def __init__(self, study: Any, history: int, ranks: dict[int, tuple[float, float]]) -> None:
        self._study, self._history, self._ranks = study, history, ranks
        self._seen: list[FrozenTrial] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def _get_trials(self, *args: Any, **options: Any) -> list[FrozenTrial]:
        if self._seen is None:
            self._seen = self._choose(self._study._get_trials(*args, **options))
        return self._seen

    def _choose(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        if len(trials) <= self._history:
            return trials
        half = self._history // 2
        older = [t for t in trials[:-half] if t.state == TrialState.COMPLETE]
        best = sorted(older, key=self._rank)[: self._history - half]
        return sorted([*best, *trials[-half:]], key=lambda t: t.number)

    def _rank(self, trial: FrozenTrial) -> tuple[float, float]:
        if trial.number not in self._ranks:
            violation = sum(max(0.0, value) for value in trial.constraints.values())
            minimize = self._study.direction == optuna.study.StudyDirection.MINIMIZE
            value = trial.values[0]
            self._ranks[trial.number] = (violation, value if minimize else -value)
        return self._ranks[trial.number]


class TPESampler(optuna.samplers.TPESampler):
    """Optuna's, with a bound on the trials it looks back on when there is one objective."""

    def __init__(self, *, seed: int | None = None, history: int = HISTORY) -> None:
        super().__init__(seed=seed)
        self.history = history
        self._ranks: dict[int, tuple[float, float]] = {}
        self._view: tuple[int, Any] = (-1, None)

    def _sample(
        self, study: Any, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if self._view[0] != trial.number:
            single = len(study.directions) == 1
            view = _RecentStudy(study, self.history, self._ranks) if single else study
            self._view = (trial.number, view)
        return super()._sample(self._view[1], trial, search_space)


class CmaEsSampler(optuna.samplers.CmaEsSampler):
    """Optuna's, whose state is told anew from the trials and never stored.

    Optuna keeps a pickle of it in the study, which would run code of whoever wrote the study. The
    state is a function of the points and values of the finished generations, which are there.
    """

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next point of the generation that is under way."""
        self._told_space, self._direction = search_space, study.direction
        return super().sample_relative(study, trial, search_space)

    def _restore_optimizer(self, completed_trials: list[FrozenTrial], *_: Any) -> Any:
        transform = _SearchSpaceTransform(self._told_space, transform_step=True, transform_0_1=True)
        sign = 1 if self._direction == optuna.study.StudyDirection.MINIMIZE else -1
        optimizer = self._init_optimizer(transform, self._direction)
        size = optimizer.population_size
        while True:
            done = self._get_solution_trials(completed_trials, optimizer.generation)
            if len(done) < size:
                return optimizer
            points = [(transform.transform(t.params), sign * t.values[0]) for t in done[:size]]
            optimizer.tell(points)


def reseed(sampler: BaseSampler, seed: int) -> None:
    """Seed every generator of a sampler, and of the samplers in it."""
    for thing in vars(sampler).values():
        if isinstance(thing, LazyRandomState):
            thing.rng.seed(seed)
        elif isinstance(thing, BaseSampler):
            reseed(thing, seed + 1)
