"""The queue where workers take trials and hand them in: it keeps the count of a study right.

A trial a worker takes is `RUNNING` and names its worker. When the worker is dead, the trial goes
back to `WAITING` under the same number with the same point, and the next worker to come takes it:
nothing is lost and nothing is evaluated twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import time
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from chop.actions.trials import COPIED_FROM, DIRECTIONS
from chop.errors import SearchError
from chop.log import get_logger
from chop.search.optuna_private import AskTellStudy, study_id, trial_id
from chop.search.plan import WorkerPlan
from chop.search.samplers import (
    RandomTrial,
    distribution,
    make_pruner,
    make_sampler,
    pruning_rule,
)
from chop.search.space import Value
from chop.search.storage import HEARTBEAT, Parameter, Store, open_store, quiet
from chop.search.trial import trial_seed
from chop.search.worker_identity import OPEN_TOKENS, WorkerIdentity

WORKER, RETRIES, RESTARTS = "worker", "retries", "restarts"
REASON, SECONDS = "reason", "seconds"
"""Attributes that the queue keeps with a trial."""
REPORTED = "reported"
"""Of a search with several objectives: what a trial reported, step -> scores."""
OWN_ATTRIBUTES = (WORKER, RETRIES, RESTARTS, REASON, SECONDS, HEARTBEAT, REPORTED)
OBJECTIVES, DIMENSIONS, ABOUT = "objectives", "dimensions", "about"
"""Attributes of a study: what it is for."""
MOST_RESTARTS = 10
"""How often a trial may be cut short by the end of the whole search: then it may be the cause."""
PATIENCE = 3
"""Copies in a row after which a worker looks for a new point by itself."""
_log = get_logger(__name__)


def point_key(params: Mapping[str, Value]) -> str:
    """The same text for the same point, whatever the order of its dimensions."""
    text = json.dumps(params, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass
class Count:
    """What is in a study at one moment."""

    finished: int
    running: list[FrozenTrial]
    waiting: list[FrozenTrial]
    points: dict[str, FrozenTrial]
    """Every point that was or is being evaluated, by key."""
    trials: list[FrozenTrial]


class Buffer:
    """Answers for a storage, and holds a trial's parameters back until they are all there."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.params: list[Parameter] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def set_trial_param(self, _trial_id: int, name: str, value: float, dist: Any) -> None:
        """Hold one parameter back."""
        self.params.append((name, value, dist))


@dataclasses.dataclass(frozen=True)
class Stop:
    """There is no further trial; `reason` says why when the count is not reached."""

    reason: str | None = None


class TrialQueue:
    """A study in its store, as one worker uses it."""

    def __init__(self, plan: WorkerPlan, store: Store, study: AskTellStudy) -> None:
        self.plan, self.store, self.study = plan, store, study
        self.me = WorkerIdentity.mine(plan.run)
        self.rule = pruning_rule(plan.pruner, len(plan.objectives))
        OPEN_TOKENS.add(self.me.token)
        self._keys: dict[int, str] = {}
        self._copies = 0
        self._is_exhausted = False
        self._next_point: dict[str, Value] | None = None

    @staticmethod
    def open(plan: WorkerPlan) -> TrialQueue:
        """The queue of the study `plan` names, made when it is not there."""
        objectives = len(plan.objectives)
        sampler = make_sampler(
            plan.sampler, plan.space, objectives, study=plan.name, seed=plan.seed
        )
        pruner = make_pruner(plan.pruner, objectives)
        store = open_store(plan.storage, plan.heartbeat_seconds)
        with store.lock(), quiet():
            optuna.create_study(
                storage=store.storage,
                study_name=plan.name,
                directions=[_direction(way) for way in plan.objectives.values()],
                load_if_exists=True,
            )
            study = AskTellStudy(plan.name, store.storage, sampler=sampler, pruner=pruner)
            _check_study(study, plan)
        return TrialQueue(plan, store, study)

    def close(self) -> None:
        """Leave: a trial that was taken here and not handed in is free from now on."""
        OPEN_TOKENS.discard(self.me.token)

    def enqueue(self, points: list[Mapping[str, Value]]) -> None:
        """Put points at the head of the line, those that the study does not have yet."""
        with self.store.lock():
            count = self.count()
            asked = [t.system_attrs.get("fixed_params", {}) for t in count.waiting]
            known = {point_key(point) for point in asked} | set(count.points)
            for point in points:
                self.plan.space.check(point, "search.initial")
                if point_key(point) not in known:
                    self.study.enqueue_trial(dict(point))

    def trials(self) -> list[FrozenTrial]:
        """Every trial, by number."""
        return self.store.storage.get_all_trials(study_id(self.study), deepcopy=False)

    def ends_early(
        self, trial: Trial, reports: Mapping[int, float], expected: Mapping[str, float]
    ) -> bool:
        """Whether a trial with several objectives ends at the step that it reported last.

        What it reported is kept for the trials that come after it.
        """
        if self.rule is None:
            return False
        first, *rest = self.plan.objectives.items()
        known = [DIRECTIONS[way] * expected[name] for name, way in rest if name in expected]
        more = known if len(known) == len(rest) else []
        sign = DIRECTIONS[first[1]]
        own = {step: (sign * float(value), *more) for step, value in reports.items()}
        kept = {str(step): list(scores) for step, scores in own.items()}
        self.store.write_attributes(trial_id(trial), {REPORTED: kept})
        others = [_reported(other) for other in self.trials() if other.number != trial.number]
        return self.rule.ends(trial.number, max(reports), own, others)

    def beaten_by(self, values: Mapping[str, float]) -> int | None:
        """The number of a complete, feasible trial that is no worse than `values` anywhere."""
        objectives = self.plan.objectives.items()
        wanted = [DIRECTIONS[way] * float(values[name]) for name, way in objectives]
        for trial in self.trials():
            if trial.state != TrialState.COMPLETE or any(v > 0 for v in trial.constraints.values()):
                continue
            reached = zip(objectives, trial.values, strict=True)
            own = [DIRECTIONS[way] * value for (_, way), value in reached]
            if all(a >= b for a, b in zip(own, wanted, strict=True)):
                return trial.number
        return None

    def count(self) -> Count:
        """What is in the study now."""
        count = Count(0, [], [], {}, self.trials())
        for trial in count.trials:
            if trial.state == TrialState.RUNNING:
                count.running.append(trial)
            elif trial.state == TrialState.WAITING:
                count.waiting.append(trial)
            elif COPIED_FROM not in trial.user_attrs:
                count.finished += 1
            if trial.params and COPIED_FROM not in trial.user_attrs:
                count.points.setdefault(self._key(trial), trial)
        return count

    def _key(self, trial: FrozenTrial) -> str:
        if trial.number not in self._keys:
            key = point_key(trial.params)
            if not trial.state.is_finished():
                return key
            self._keys[trial.number] = key
        return self._keys[trial.number]

    def claim(self) -> Trial | Stop | None:
        """A trial to evaluate, None when there may be one later, or `Stop`."""
        if self.plan.deadline is not None and time.time() >= self.plan.deadline:
            return Stop("its time is over")
        if self.study.is_stopped:
            return Stop("its sampler has nothing more to propose")
        with self.store.lock():
            count = self._requeue_dead(self.count())
            if count.finished >= self.plan.trials:
                return Stop()
            if count.finished + len(count.running) >= self.plan.trials:
                return None
            if not count.waiting and self._has_every_point(count):
                points = len(count.points)
                return None if count.running else Stop(f"its space is exhausted: {points} points")
            taken = self._take(count)
            self.store.beat(taken)
        self.study.know_trials(count.trials)
        return Trial(self.study, taken)

    def _has_every_point(self, count: Count) -> bool:
        size = self.plan.space.size
        return self._is_exhausted or (size is not None and len(count.points) >= size)

    def _take(self, count: Count) -> int:
        for trial in count.waiting:
            if self.store.storage.set_trial_state_values(trial_id(trial), TrialState.RUNNING):
                self.store.write_attributes(trial_id(trial), {WORKER: dataclasses.asdict(self.me)})
                return trial_id(trial)
        fixed, self._next_point = self._next_point, None
        template = optuna.create_trial(
            state=TrialState.RUNNING,
            user_attrs={WORKER: dataclasses.asdict(self.me)},
            system_attrs={"fixed_params": fixed} if fixed else {},
        )
        return int(self.store.storage.create_new_trial(study_id(self.study), template))

    def _requeue_dead(self, count: Count) -> Count:
        """Put the trials of dead workers back in line; the lock is held."""
        verdicts = [(trial, self._is_abandoned(trial)) for trial in count.running]
        dead = [trial for trial, verdict in verdicts if verdict]
        remote = [trial for trial, verdict in verdicts if verdict is None]
        if remote:
            silent = self.store.silent(study_id(self.study), remote)
            dead += [trial for trial in remote if trial_id(trial) in silent]
        for trial in dead:
            self._requeue(trial)
        return self.count() if dead else count

    def _is_abandoned(self, trial: FrozenTrial) -> bool | None:
        worker = _worker(trial)
        if worker is None:  # someone drives the study by hand: it is theirs to finish
            return False
        # Who comes to claim has no other trial.
        return worker.token == self.me.token or worker.is_dead()

    def _requeue(self, trial: FrozenTrial) -> None:
        """Put a trial back in line, unless its workers keep dying.

        A worker that dies while the others live is counted against the trial. The end of the
        whole search is not its fault, as long as that does not go on for ever.
        """
        worker = _worker(trial)
        counter = RETRIES if worker is not None and worker.run == self.me.run else RESTARTS
        tries = trial.user_attrs.get(counter, 0) + 1
        if tries > {RETRIES: self.plan.retries, RESTARTS: MOST_RESTARTS}[counter]:
            reason = f"its worker died {tries} times (killed, or the machine ran out of memory)"
            self.store.write_attributes(trial_id(trial), {REASON: reason})
            self.store.storage.set_trial_state_values(trial_id(trial), TrialState.FAIL)
            _log.warning("%s: trial %d failed: %s.", self.plan.name, trial.number, reason)
            return
        self.store.write_attributes(trial_id(trial), {counter: tries})
        self.store.storage.set_trial_state_values(trial_id(trial), TrialState.WAITING)
        _log.info(
            "%s: trial %d is in line again, its worker is dead.", self.plan.name, trial.number
        )

    def give_back(self, trial: Trial) -> None:
        """Put a trial that was not finished back in line, as if it had not been taken."""
        self.store.storage.set_trial_state_values(trial_id(trial), TrialState.WAITING)

    def choose(self, trial: Trial) -> tuple[dict[str, Value], FrozenTrial | None]:
        """The trial's point, and the trial that had the same point before."""
        buffer = Buffer(self.store.storage)
        trial.storage = buffer  # type: ignore[assignment]
        point = self.plan.space.suggest(trial)
        trial.storage = self.store.storage
        with self.store.lock():  # of two that choose a point at once, one sees the other
            earlier = self.count().points.get(point_key(trial.params))
            self.store.write_params(trial_id(trial), buffer.params)
        return point, earlier if earlier is not None and earlier.number != trial.number else None

    def hand_in_copy(self, trial: Trial, earlier: FrozenTrial) -> None:
        """Finish a trial with the result of an earlier one; it does not count."""
        attributes: dict[str, Any] = {COPIED_FROM: earlier.number}
        state, values = earlier.state, earlier.values
        if not state.is_finished():
            state, values = TrialState.FAIL, None
            attributes[REASON] = f"trial {earlier.number} has the same point and is not finished"
        elif REASON in earlier.user_attrs:
            attributes[REASON] = earlier.user_attrs[REASON]
        for name, value in earlier.constraints.items():
            trial.set_constraint(name, value)
        done = values if state == TrialState.COMPLETE else None
        self.hand_in(trial, state, done, attributes)
        self._copies += 1
        if self._copies >= PATIENCE:
            self._next_point = self._new_point(trial.number)
            self._is_exhausted = self._next_point is None

    def hand_in(
        self,
        trial: Trial,
        state: TrialState,
        values: list[float] | None,
        attributes: Mapping[str, Any],
    ) -> bool:
        """Finish a trial; False when it was given to another worker in the meantime."""
        now = self.store.storage.get_trial(trial_id(trial))
        owner = _worker(now)
        if now.state != TrialState.RUNNING or owner is None or owner.token != self.me.token:
            _log.info("%s: trial %d was given to another worker.", self.plan.name, trial.number)
            return False
        self.store.write_attributes(trial_id(trial), attributes)
        self.study.tell(trial, values, state=state)
        if COPIED_FROM not in attributes:
            self._copies = 0
        return True

    def _new_point(self, number: int) -> dict[str, Value] | None:
        """A point that no trial has, drawn at random; None when there seems to be none left."""
        points = self.count().points
        size = self.plan.space.size
        draws = 1000 if size is None else min(max(20 * size, 1000), 20_000)
        generator = random.Random(trial_seed(f"{self.plan.name}/new", number))
        for _ in range(draws):
            drawn = RandomTrial(generator)
            self.plan.space.suggest(drawn)
            if point_key(drawn.params) not in points:
                return drawn.params
        return None


def _reported(trial: FrozenTrial) -> dict[int, tuple[float, ...]]:
    """What a trial reported; nothing where its attribute is not ours."""
    kept = trial.user_attrs.get(REPORTED)
    if not isinstance(kept, Mapping):
        return {}
    return {
        int(step): tuple(map(float, scores))
        for step, scores in kept.items()
        if str(step).isdecimal() and isinstance(scores, list) and scores
    }


def _worker(trial: FrozenTrial) -> WorkerIdentity | None:
    given = trial.user_attrs.get(WORKER)
    return WorkerIdentity(**given) if given else None


def _check_study(study: AskTellStudy, plan: WorkerPlan) -> None:
    """Refuse to go on with a study that was started for something else; keep what it is for."""
    kept = study.user_attrs
    dimensions = {name: str(d) for name, d in sorted(plan.space.dimensions.items())}
    if OBJECTIVES not in kept:
        if study.directions != [_direction(way) for way in plan.objectives.values()]:
            raise SearchError(f"study '{plan.name}': it has other directions.")
        study.set_user_attr(OBJECTIVES, dict(plan.objectives))
        study.set_user_attr("sampler", plan.sampler_name)
        study.set_user_attr("seed", plan.seed)
        study.set_user_attr(DIMENSIONS, dimensions)
        study.set_user_attr(ABOUT, dict(plan.about))
        study.set_metric_names(list(plan.objectives))
    elif list(kept[OBJECTIVES].items()) != list(plan.objectives.items()):
        raise _other_study(plan, "objectives", kept[OBJECTIVES], dict(plan.objectives))
    _check_facts(plan, "dimension", kept.get(DIMENSIONS, dimensions), dimensions)
    if plan.about:
        _check_facts(plan, "", kept.get(ABOUT, plan.about), plan.about)
    _check_dimensions(study, plan)


def _check_facts(
    plan: WorkerPlan, kind: str, kept: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    for name in {**kept, **now}:
        if kept.get(name) != now.get(name):
            what = f"{kind} '{name}'" if kind else name
            raise _other_study(plan, what, kept.get(name), now.get(name))


def _other_study(plan: WorkerPlan, what: str, kept: Any, now: Any) -> SearchError:
    return SearchError(
        f"study '{plan.name}': it was started with {what} {_shown(kept)}, not {_shown(now)}. "
        "Give the search another name or storage."
    )


def _shown(fact: Any) -> str:
    return "none" if fact is None else str(fact)


def _direction(name: str) -> optuna.study.StudyDirection:
    return optuna.study.StudyDirection[name.upper()]


def _check_dimensions(study: AskTellStudy, plan: WorkerPlan) -> None:
    kept: dict[str, Any] = {}
    for trial in study.get_trials(deepcopy=False):
        kept = {**trial.distributions, **kept}
    study.know_trials(None)
    for name in kept.keys() & plan.space.dimensions.keys():
        now = distribution(plan.space.dimensions[name])
        try:
            optuna.distributions.check_distribution_compatibility(kept[name], now)
        except ValueError as error:
            raise SearchError(
                f"study '{plan.name}': dimension '{name}' was {kept[name]} and is now {now}. "
                "Give the search another name or storage."
            ) from error
