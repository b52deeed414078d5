"""Queue of trials that workers share.

A claimed trial is `RUNNING` and stores its worker. If the worker dies, the trial becomes `WAITING`
again with the same number and point, and the next worker claims it: no trial is lost and no point
is evaluated twice.
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
from chop.search.samplers import RandomTrial, distribution, make_pruner, make_sampler, pruning_rule
from chop.search.search_plan import WorkerPlan
from chop.search.space import ParameterValue
from chop.search.study_storage import HEARTBEAT, Parameter, Store, open_store, quiet
from chop.search.trial import trial_seed
from chop.search.worker_identity import OPEN_TOKENS, WorkerIdentity

WORKER, RETRIES, RESTARTS = "worker", "retries", "restarts"
REASON, SECONDS = "reason", "seconds"
"""Attributes of a trial that the queue writes."""
REPORTED = "reported"
"""Attribute of a trial with several objectives: its reports, step -> scores."""
OWN_ATTRIBUTES = (WORKER, RETRIES, RESTARTS, REASON, SECONDS, HEARTBEAT, REPORTED)
OBJECTIVES, DIMENSIONS, ABOUT = "objectives", "dimensions", "about"
"""Attributes that identify what a study searches."""
MOST_RESTARTS = 10
"""Times that the end of the whole search may interrupt a trial before the trial is to blame."""
PATIENCE = 3
"""Copies in a row after which a worker draws a new point at random."""
_log = get_logger(__name__)


def point_key(params: Mapping[str, ParameterValue]) -> str:
    """Return a key of a point that does not depend on the order of its dimensions."""
    return hashlib.sha256(json.dumps(params, sort_keys=True).encode()).hexdigest()[:16]


@dataclasses.dataclass
class Count:
    """Trials of a study at one moment."""

    finished: int
    running: list[FrozenTrial]
    waiting: list[FrozenTrial]
    points: dict[str, FrozenTrial]
    """Points that were or are being evaluated, by key."""
    trials: list[FrozenTrial]


class Buffer:
    """Proxy of a storage that collects a trial's parameters instead of writing them."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.params: list[Parameter] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def set_trial_param(self, _trial_id: int, name: str, value: float, dist: Any) -> None:
        """Collect one parameter."""
        self.params.append((name, value, dist))


@dataclasses.dataclass(frozen=True)
class Stop:
    """End of the queue; `reason` is set if not all trials are done."""

    reason: str | None = None


class TrialQueue:
    """Study in its store, as one worker uses it."""

    def __init__(self, plan: WorkerPlan, store: Store, study: AskTellStudy) -> None:
        self.plan, self.store, self.study = plan, store, study
        self.me = WorkerIdentity.mine(plan.run)
        self.rule = pruning_rule(plan.pruner, len(plan.objectives))
        OPEN_TOKENS.add(self.me.token)
        self._keys: dict[int, str] = {}
        self._copies = 0
        self._is_exhausted = False
        self._next_point: dict[str, ParameterValue] | None = None

    @staticmethod
    def open(plan: WorkerPlan) -> TrialQueue:
        """Open the queue of the study of `plan`, and create the study if it does not exist."""
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
        """Close the queue: a claimed trial without a result is free from now on."""
        OPEN_TOKENS.discard(self.me.token)

    def enqueue(self, points: list[Mapping[str, ParameterValue]]) -> None:
        """Queue the points that the study does not have yet."""
        with self.store.lock():
            count = self.count()
            queued = [t.system_attrs.get("fixed_params", {}) for t in count.waiting]
            keys = {point_key(point) for point in queued} | set(count.points)
            for point in points:
                self.plan.space.check(point, "search.initial")
                if point_key(point) not in keys:
                    self.study.enqueue_trial(dict(point))

    def trials(self) -> list[FrozenTrial]:
        """Return every trial, by number."""
        return self.store.storage.get_all_trials(study_id(self.study), deepcopy=False)

    def ends_early(
        self, trial: Trial, reports: Mapping[int, float], expected: Mapping[str, float]
    ) -> bool:
        """Return True if a trial with several objectives ends at its last report.

        The reports are stored, for comparison with later trials.
        """
        if self.rule is None:
            return False
        first, *rest = self.plan.objectives.items()
        scores = [DIRECTIONS[way] * expected[name] for name, way in rest if name in expected]
        more = scores if len(scores) == len(rest) else []
        sign = DIRECTIONS[first[1]]
        own = {step: (sign * float(value), *more) for step, value in reports.items()}
        record = {str(step): list(each) for step, each in own.items()}
        self.store.write_attributes(trial_id(trial), {REPORTED: record})
        others = [_reported(other) for other in self.trials() if other.number != trial.number]
        return self.rule.ends(trial.number, max(reports), own, others)

    def beaten_by(self, values: Mapping[str, float]) -> int | None:
        """Return the number of a feasible trial that is never worse than `values`, or None."""
        signs = [DIRECTIONS[way] for way in self.plan.objectives.values()]
        limits = [float(values[name]) for name in self.plan.objectives]
        for trial in self.trials():
            if trial.state != TrialState.COMPLETE or any(v > 0 for v in trial.constraints.values()):
                continue
            triples = zip(signs, trial.values, limits, strict=True)
            if all(sign * value >= sign * limit for sign, value, limit in triples):
                return trial.number
        return None

    def count(self) -> Count:
        """Return the current trials of the study."""
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
        """Return a trial to evaluate, None if there may be one later, or `Stop`."""
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
            size, points = self.plan.space.size, len(count.points)
            is_exhausted = self._is_exhausted or (size is not None and points >= size)
            if is_exhausted and not count.waiting:
                return None if count.running else Stop(f"its space is exhausted: {points} points")
            claimed = self._claim_id(count)
            self.store.beat(claimed)
        self.study.know_trials(count.trials)
        return Trial(self.study, claimed)

    def _claim_id(self, count: Count) -> int:
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
        """Queue the trials of dead workers again; needs the lock."""
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
        if worker is None:  # a user runs this trial by hand
            return False
        # a worker that claims has no other trial
        return worker.token == self.me.token or worker.is_dead()

    def _requeue(self, trial: FrozenTrial) -> None:
        """Queue a trial again, or fail it if its workers died too often.

        Deaths during this run (`RETRIES`) and ends of earlier runs (`RESTARTS`) count separately.
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
        """Queue an unfinished trial again, as if it had not been claimed."""
        self.store.storage.set_trial_state_values(trial_id(trial), TrialState.WAITING)

    def choose(self, trial: Trial) -> tuple[dict[str, ParameterValue], FrozenTrial | None]:
        """Return the trial's point, and an earlier trial with the same point, if any."""
        buffer = Buffer(self.store.storage)
        trial.storage = buffer  # type: ignore[assignment]
        point = self.plan.space.suggest(trial)
        trial.storage = self.store.storage
        with self.store.lock():  # two workers may choose the same point at once
            earlier = self.count().points.get(point_key(trial.params))
            self.store.write_params(trial_id(trial), buffer.params)
        return point, earlier if earlier is not None and earlier.number != trial.number else None

    def hand_in_copy(self, trial: Trial, earlier: FrozenTrial) -> None:
        """Finish a trial with the result of an earlier one; it does not count as an evaluation."""
        attributes: dict[str, Any] = {COPIED_FROM: earlier.number}
        state, values = earlier.state, earlier.values
        if not state.is_finished():
            state, values = TrialState.FAIL, None
            attributes[REASON] = f"trial {earlier.number} has the same point and is not finished"
        elif REASON in earlier.user_attrs:
            attributes[REASON] = earlier.user_attrs[REASON]
        for name, value in earlier.constraints.items():
            trial.set_constraint(name, value)
        self.hand_in(trial, state, values if state == TrialState.COMPLETE else None, attributes)
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
        """Finish a trial; return False if another worker has it now."""
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

    def _new_point(self, number: int) -> dict[str, ParameterValue] | None:
        """Return a random point that no trial has; None if there seems to be none."""
        points = self.count().points
        size = self.plan.space.size
        draws = 1000 if size is None else min(max(20 * size, 1000), 20_000)
        generator = random.Random(trial_seed(f"{self.plan.name}/new", number))
        for _ in range(draws):
            candidate = RandomTrial(generator)
            self.plan.space.suggest(candidate)
            if point_key(candidate.params) not in points:
                return candidate.params
        return None


def _reported(trial: FrozenTrial) -> dict[int, tuple[float, ...]]:
    """Return the reports of a trial, without those of another form."""
    record = trial.user_attrs.get(REPORTED)
    if not isinstance(record, Mapping):
        return {}
    return {
        int(step): tuple(map(float, scores))
        for step, scores in record.items()
        if str(step).isdecimal() and isinstance(scores, list) and scores
    }


def _worker(trial: FrozenTrial) -> WorkerIdentity | None:
    fields = trial.user_attrs.get(WORKER)
    return WorkerIdentity(**fields) if fields else None


def _check_study(study: AskTellStudy, plan: WorkerPlan) -> None:
    """Raise if a study was started for something else; otherwise store what it is for."""
    stored = study.user_attrs
    dimensions = {name: str(d) for name, d in sorted(plan.space.dimensions.items())}
    if OBJECTIVES not in stored:
        if study.directions != [_direction(way) for way in plan.objectives.values()]:
            raise SearchError(f"study '{plan.name}': it has other directions.")
        study.set_user_attr(OBJECTIVES, dict(plan.objectives))
        study.set_user_attr("sampler", plan.sampler_name)
        study.set_user_attr("seed", plan.seed)
        study.set_user_attr(DIMENSIONS, dimensions)
        study.set_user_attr(ABOUT, dict(plan.about))
        study.set_metric_names(list(plan.objectives))
    elif list(stored[OBJECTIVES].items()) != list(plan.objectives.items()):
        raise _other_study(plan, "objectives", stored[OBJECTIVES], dict(plan.objectives))
    _check_facts(plan, "dimension", stored.get(DIMENSIONS, dimensions), dimensions)
    if plan.about:
        _check_facts(plan, "", stored.get(ABOUT, plan.about), plan.about)
    _check_dimensions(study, plan)


def _check_facts(
    plan: WorkerPlan, kind: str, stored: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    for name in {**stored, **now}:
        if stored.get(name) != now.get(name):
            what = f"{kind} '{name}'" if kind else name
            raise _other_study(plan, what, stored.get(name), now.get(name))


def _other_study(plan: WorkerPlan, what: str, stored: Any, now: Any) -> SearchError:
    before, after = ("none" if fact is None else str(fact) for fact in (stored, now))
    return SearchError(
        f"study '{plan.name}': it was started with {what} {before}, not {after}. "
        "Give the search another name or storage."
    )


def _direction(name: str) -> optuna.study.StudyDirection:
    return optuna.study.StudyDirection[name.upper()]


def _check_dimensions(study: AskTellStudy, plan: WorkerPlan) -> None:
    stored: dict[str, Any] = {}
    for trial in study.get_trials(deepcopy=False):
        stored = {**trial.distributions, **stored}
    study.know_trials(None)
    for name in stored.keys() & plan.space.dimensions.keys():
        now = distribution(plan.space.dimensions[name])
        try:
            optuna.distributions.check_distribution_compatibility(stored[name], now)
        except ValueError as error:
            raise SearchError(
                f"study '{plan.name}': dimension '{name}' was {stored[name]} and is now {now}. "
                "Give the search another name or storage."
            ) from error
