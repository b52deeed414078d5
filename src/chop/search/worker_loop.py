"""Loop of a worker: claim a trial, evaluate it, store its result, until all trials are done."""

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
from chop.search.search_plan import WorkerPlan, load_evaluate
from chop.search.space import ParameterValue
from chop.search.trial import Evaluate, Pruned, TrialContext, trial_seed
from chop.search.trial_queue import REASON, SECONDS, Stop, TrialQueue

FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""Seconds between checks while other workers run the last trials; the wait doubles each time."""
INTERRUPTED = "it was interrupted"
_log = get_logger(__name__)


@dataclass
class StudyTrial(TrialContext):
    """Context of a trial that reports to its study."""

    trial: Trial | None = field(default=None, repr=False)
    queue: TrialQueue | None = field(default=None, repr=False)

    @property
    def weighs_expected(self) -> bool:
        """True if a pruning rule compares trials by several objectives."""
        return self.queue is not None and self.queue.rule is not None

    def beaten_by(self, values: Mapping[str, float]) -> int | None:
        """Return the number of a trial that is no worse than `values` in any objective, or None."""
        return None if self.queue is None else self.queue.beaten_by(values)

    def report(self, step: int, value: float) -> None:
        """Store the value, and raise `Pruned` if the pruner ends the trial."""
        super().report(step, value)
        trial = self.trial
        if trial is None:
            return
        if len(trial.study.directions) > 1:
            queue = self.queue
            ends = queue is not None and queue.ends_early(trial, self.reports, self.expected)
        else:
            if step not in reported_values(trial):  # stored before a retry
                trial.report(float(value), step)
            ends = trial.should_prune()
        if ends:
            raise Pruned(f"trial {self.number}: pruned at step {step} with {value}.")


def work(
    plan: WorkerPlan, worker: int = 0, on_trial: Callable[[], None] | None = None
) -> str | None:
    """Evaluate trials until the study has all of them; return the reason if it stops early."""
    evaluate = load_evaluate(plan.evaluate)
    queue = TrialQueue.open(plan)
    if worker and not isinstance(plan.sampler, str):
        queue.study.sampler.reseed_rng()  # otherwise every worker draws the same points
    try:
        return _run_trials(queue, evaluate, on_trial or (lambda: None))
    finally:
        queue.close()


def _run_trials(queue: TrialQueue, evaluate: Evaluate, on_trial: Callable[[], None]) -> str | None:
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
    """Record heartbeats at intervals; the claim was the first one."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(queue.plan.heartbeat_seconds):
            try:
                queue.store.beat(trial_id(trial))
            except optuna.exceptions.OptunaError as error:  # the next one may succeed
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
    devices = queue.plan.devices
    context = StudyTrial(trial.number, seed, folder, devices=devices, trial=trial, queue=queue)
    seed_everything(seed)
    start = time.perf_counter()
    outcome = _evaluate(evaluate, point, context, list(queue.plan.objectives))
    attributes = {**context.attributes, SECONDS: time.perf_counter() - start}
    with contextlib.suppress(OSError):  # it is not empty
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
    """End of an evaluation."""

    state: TrialState
    values: list[float] | None = None
    reason: str | None = None


def _evaluate(
    evaluate: Evaluate,
    point: Mapping[str, ParameterValue],
    context: TrialContext,
    objectives: list[str],
) -> Outcome:
    try:
        return _check_result(evaluate(dict(point), context), context, objectives)
    except (Pruned, optuna.TrialPruned) as ended:
        return Outcome(TrialState.PRUNED, reason=str(ended) or None)
    except (Exception, SystemExit) as error:  # one bad trial must not end the search
        reason = describe(error)
    gc.collect()  # free the memory of the failed evaluation
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
        keys = ", ".join(map(str, result)) or "nothing"
        raise SearchError(f"evaluate gave no '{missing[0]}'. It gave: {keys}.")
    values = [_number(name, result[name]) for name in objectives]
    for name, value in context.constraints.items():
        _number(f"constraint '{name}'", value)
    for key, value in result.items():
        if key not in objectives:
            is_scalar = hasattr(value, "item") and not isinstance(value, str)
            context.attribute(key, value.item() if is_scalar else value)
    return Outcome(TrialState.COMPLETE, values)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} is {value!r}. Allowed: a number.") from error
    if not math.isfinite(number):
        raise SearchError(f"{name} is {number}.")
    return number


def describe(error: BaseException) -> str:
    """Return an error's last line and its place: `ValueError: bad width (net.py:12 in f)`."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[-1].strip()}" if lines else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = str(Path(__file__))
    place = next((f for f in reversed(frames) if f.filename != own), None)
    where = f" ({Path(place.filename).name}:{place.lineno} in {place.name})" if place else ""
    return text + where


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, and of numpy and torch if they are loaded."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)
