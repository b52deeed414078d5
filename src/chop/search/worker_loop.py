"""What a worker does: take a trial, evaluate it, hand in its result, until the count is reached."""

from __future__ import annotations

import contextlib
import gc
import math
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from chop.errors import ConfigError, SearchError
from chop.log import get_logger
from chop.search.optuna_private import reported_values, trial_id
from chop.search.plan import WorkerPlan, load_evaluate
from chop.search.space import Value
from chop.search.trial import Evaluate, Pruned, TrialContext, trial_seed
from chop.search.trial_queue import REASON, SECONDS, Stop, TrialQueue

FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""Seconds between looks at a study in which all that is left is in other hands."""
INTERRUPTED = "it was interrupted"
_log = get_logger(__name__)


@dataclass
class StudyTrial(TrialContext):
    """A trial's context that passes on to its study what the pruner needs at once."""

    trial: Trial | None = field(default=None, repr=False)
    queue: TrialQueue | None = field(default=None, repr=False)

    @property
    def weighs_expected(self) -> bool:
        """Whether a rule compares trials by several objectives."""
        return self.queue is not None and self.queue.rule is not None

    def beaten_by(self, values: Mapping[str, float]) -> int | None:
        """The number of a trial that is no worse than `values` in any objective."""
        return None if self.queue is None else self.queue.beaten_by(values)

    def report(self, step: int, value: float) -> None:
        """Keep the value, and raise `Pruned` when the pruner has seen enough."""
        super().report(step, value)
        trial = self.trial
        if trial is None:
            return
        if len(trial.study.directions) > 1:
            if self.queue is not None and self.queue.ends_early(trial, self.reports, self.expected):
                raise Pruned(f"trial {self.number}: pruned at step {step} with {value}.")
            return
        if step not in reported_values(trial):  # kept from before a retry
            trial.report(float(value), step)
        if trial.should_prune():
            raise Pruned(f"trial {self.number}: pruned at step {step} with {value}.")


def work(
    plan: WorkerPlan, worker: int = 0, on_trial: Callable[[], None] | None = None
) -> str | None:
    """Evaluate trials until the study has as many as it should; gives why it stopped before."""
    evaluate = load_evaluate(plan.evaluate)
    queue = TrialQueue.open(plan)
    if worker and not isinstance(plan.sampler, str):
        queue.study.sampler.reseed_rng()  # as it is, every worker would draw the same points
    try:
        return _work(queue, evaluate, on_trial or (lambda: None))
    finally:
        queue.close()


def _work(queue: TrialQueue, evaluate: Evaluate, on_trial: Callable[[], None]) -> str | None:
    wait = FIRST_WAIT
    while True:
        claimed = queue.claim()
        if isinstance(claimed, Stop):
            return claimed.reason
        if claimed is None:
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
            continue
        wait = FIRST_WAIT
        try:
            with _heartbeat(queue, claimed):
                _run(queue, claimed, evaluate)
        except KeyboardInterrupt:
            queue.give_back(claimed)
            raise
        on_trial()


@contextlib.contextmanager
def _heartbeat(queue: TrialQueue, trial: Trial) -> Iterator[None]:
    """Say at intervals that this worker lives; the claim was the first time."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(queue.plan.heartbeat_seconds):
            try:
                queue.store.beat(trial_id(trial))
            except optuna.exceptions.OptunaError as error:  # the next one may come through
                _log.warning("%s: heartbeat failed: %s", queue.plan.name, error)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _run(queue: TrialQueue, trial: Trial, evaluate: Evaluate) -> None:
    point, earlier = queue.choose(trial)
    if earlier is not None:
        queue.hand_in_copy(trial, earlier)
        return
    folder = queue.plan.directory / f"trial-{trial.number:05d}"
    folder.mkdir(parents=True, exist_ok=True)
    seed = trial_seed(queue.plan.name, trial.number)
    context = StudyTrial(trial.number, seed, folder, trial=trial, queue=queue)
    seed_everything(seed)
    start = time.perf_counter()
    outcome = _evaluate(evaluate, point, context, list(queue.plan.objectives))
    attributes = {**context.attributes, SECONDS: time.perf_counter() - start}
    with contextlib.suppress(OSError):  # it holds something
        folder.rmdir()
    if outcome.reason is not None:
        attributes[REASON] = outcome.reason
        _log.info("%s: trial %d: %s", queue.plan.name, trial.number, outcome.reason)
    if outcome.state != TrialState.FAIL:
        for name, value in context.constraints.items():
            trial.set_constraint(name, value)
    queue.hand_in(trial, outcome.state, outcome.values, attributes)


@dataclass(frozen=True)
class Outcome:
    """How an evaluation ended."""

    state: TrialState
    values: list[float] | None = None
    reason: str | None = None


def _evaluate(
    evaluate: Evaluate, point: Mapping[str, Value], context: TrialContext, objectives: list[str]
) -> Outcome:
    try:
        return _check_result(evaluate(dict(point), context), context, objectives)
    except (Pruned, optuna.TrialPruned) as ended:
        return Outcome(TrialState.PRUNED, reason=str(ended) or None)
    except (Exception, SystemExit) as error:  # one bad trial must not end the search
        reason = describe(error)
    gc.collect()  # what the failed evaluation held goes before the next one starts
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    return Outcome(TrialState.FAIL, reason=reason)


def _check_result(result: Any, context: TrialContext, objectives: list[str]) -> Outcome:
    if isinstance(result, Real) and len(objectives) == 1:
        result = {objectives[0]: result}
    if not isinstance(result, Mapping):
        raise SearchError(f"evaluate gave {result!r}. Allowed: {{objective: value}}.")
    missing = [name for name in objectives if name not in result]
    if missing:
        given = ", ".join(map(str, result)) or "nothing"
        raise SearchError(f"evaluate gave no '{missing[0]}'. It gave: {given}.")
    values = [_number(name, result[name]) for name in objectives]
    for name, value in context.constraints.items():
        _number(f"constraint '{name}'", value)
    for key, value in result.items():
        if key not in objectives:
            context.attribute(key, _plain(value))
    return Outcome(TrialState.COMPLETE, values)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} is {value!r}. Allowed: a number.") from error
    if not math.isfinite(number):
        raise SearchError(f"{name} is {number}.")
    return number


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and not isinstance(value, str) else value


def describe(error: BaseException) -> str:
    """The last line of an error and where it was raised: `ValueError: bad width (net.py:12)`."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    said = f"{type(error).__name__}: {lines[-1].strip()}" if lines else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = str(Path(__file__))
    place = next((f for f in reversed(frames) if f.filename != own), None)
    where = f" ({Path(place.filename).name}:{place.lineno} in {place.name})" if place else ""
    return said + where


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, and of numpy and torch where they are loaded."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)
