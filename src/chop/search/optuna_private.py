"""All uses of private names of Optuna, which a release of Optuna may change.

`tests/search/test_optuna_private.py` fails on a release that is not in `KNOWN_RELEASES`. Check each
private name of this file in that release, then add it.
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
"""Releases of Optuna that this file was checked with."""
HISTORY = 200
"""Past trials that TPE uses; more take time in every trial and change its proposals little."""


def study_id(study: Any) -> int:
    """Return the id of a study in its storage."""
    return int(study._study_id)


def trial_id(trial: Trial | FrozenTrial) -> int:
    """Return the id of a trial in its storage, which differs from its number in the study."""
    return int(trial._trial_id)


def reported_values(trial: Trial) -> Mapping[int, float]:
    """Return the values that a running trial reported, by step."""
    return trial._cached_frozen_trial.intermediate_values


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
    """Return the trials whose heartbeats have stopped, by the server's clock."""
    return set(backend._get_stale_trial_ids(study))


class AskTellStudy(optuna.Study):
    """Study driven by ask and tell, whose sampler may ask to stop."""

    is_stopped = False

    def stop(self) -> None:
        """Record that the sampler has no more proposals."""
        self.is_stopped = True

    def _get_trials(
        self, deepcopy: bool = True, states: Any = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        # Read the list once per trial: samplers use it for every dimension.
        return super()._get_trials(deepcopy, states, True)

    def know_trials(self, trials: list[FrozenTrial] | None) -> None:
        """Cache `trials` as the list until the next trial; None: read it on demand."""
        self._thread_local.cached_all_trials = trials


class _RecentStudy:
    """View of a study for the sampler of one trial: its best and its latest trials."""

    def __init__(self, study: Any, history: int, ranks: dict[int, tuple[float, float]]) -> None:
        self._study, self._history, self._ranks = study, history, ranks
        self._trials: list[FrozenTrial] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def _get_trials(self, *args: Any, **options: Any) -> list[FrozenTrial]:
        if self._trials is None:
            self._trials = trials = self._study._get_trials(*args, **options)
            if len(trials) > self._history:
                half = self._history // 2
                older = [t for t in trials[:-half] if t.state == TrialState.COMPLETE]
                best = sorted(older, key=self._rank)[: self._history - half]
                self._trials = sorted([*best, *trials[-half:]], key=lambda t: t.number)
        return self._trials

    def _rank(self, trial: FrozenTrial) -> tuple[float, float]:
        if trial.number not in self._ranks:
            violation = sum(max(0.0, value) for value in trial.constraints.values())
            minimize = self._study.direction == optuna.study.StudyDirection.MINIMIZE
            value = trial.values[0]
            self._ranks[trial.number] = (violation, value if minimize else -value)
        return self._ranks[trial.number]


class TPESampler(optuna.samplers.TPESampler):
    """TPE of Optuna that uses at most `history` trials if there is one objective."""

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
    """CMA-ES of Optuna that recomputes its state from the finished trials.

    Optuna stores the state as a pickle in the study, which could run code of the study's author.
    """

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next point of the current generation."""
        self._space, self._direction = search_space, study.direction
        return super().sample_relative(study, trial, search_space)

    def _restore_optimizer(self, completed_trials: list[FrozenTrial], *_: Any) -> Any:
        transform = _SearchSpaceTransform(self._space, transform_step=True, transform_0_1=True)
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
    """Seed every generator of a sampler, and of the samplers inside it."""
    for thing in vars(sampler).values():
        if isinstance(thing, LazyRandomState):
            thing.rng.seed(seed)
        elif isinstance(thing, BaseSampler):
            reseed(thing, seed + 1)
