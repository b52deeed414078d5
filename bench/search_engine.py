"""What the machinery of a search costs, and what more workers give.

1. Seconds of machinery in a trial (everything but the evaluation) with 20 and 50 parameters, as a
   share of a trial of 10 s: at most 2 %.
2. 1000 trials of a toy objective with TPE on SQLite: the time of each hundred. `growth` is the
   exponent of total time over trials, fitted to the totals after 100, 200 …: 1 is linear. It is
   measured with the bound on TPE's history that the search has, and without.
3. Two workers against one on trials that use one core each: at least 1.8 times the trials.

    python bench/search_engine.py [--trials N] [--parameters N …] [--core-seconds S] [--rounds N]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.append(sys.path.pop(0))  # this folder last: its graph.py is not the package

from measuring.record import save
from tabulate import tabulate

from chop.search import Choice, Integer, Progress, Real, Space, TrialContext, search
from chop.search.samplers import TPESampler

LIMITS = {"overhead": 0.02, "growth": 1.1, "speedup": 1.8}
TRIAL_SECONDS = 10.0
OVERHEAD_TRIALS = 40
STORAGES = ("study.db", "study.journal")
MINIMIZE = {"loss": "minimize"}


def space_of(parameters: int) -> Space:
    """A space like that of a mixed-precision search: choices, and some numbers among them."""
    kinds = (
        Choice(("integer", "mxint", "log")),
        Integer(2, 16),
        Choice((4, 8, 16)),
        Real(0.0, 1.0),
    )
    return Space({f"layer.{i}": kinds[i % len(kinds)] for i in range(parameters)})


def toy(point: Mapping[str, Any], trial: TrialContext) -> dict[str, float]:
    """A value at once: all the time there is goes into the machinery."""
    return {"loss": sum(v for v in point.values() if not isinstance(v, str))}


def burn(point: Mapping[str, Any], trial: TrialContext) -> dict[str, float]:
    """As many seconds of one core as the point says, and when they began."""
    began = time.time()
    end = time.process_time() + point["seconds"]
    while time.process_time() < end:
        pass
    return {"loss": point["x"], "began": began, "ended": time.time()}


class Clock:
    """Notes when each trial is finished."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]
        self.inside = 0.0

    def __call__(self, progress: Progress) -> None:
        """One more is done."""
        self.times.append(time.perf_counter())
        self.inside = sum(t["seconds"] or 0.0 for t in progress.trials)


def overhead(parameters: int, storage: str) -> dict[str, Any]:
    """The median of the seconds between the ends of trials that take no time themselves."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        search(
            space_of(parameters),
            toy,
            MINIMIZE,
            trials=OVERHEAD_TRIALS,
            storage=Path(folder) / storage,
            on_progress=clock,
        )
    gaps = [b - a for a, b in itertools.pairwise(clock.times[11:])]
    seconds = statistics.median(gaps)  # after the eleventh: TPE has started
    return {
        "storage": storage,
        "parameters": parameters,
        "seconds": seconds,
        "overhead": seconds / TRIAL_SECONDS,
    }


def growth(trials: int, parameters: int, history: int) -> dict[str, Any]:
    """The time of each hundred of `trials`, and the exponent of the total."""
    times = [time.perf_counter()]
    sampler = TPESampler(seed=0, history=history)
    with tempfile.TemporaryDirectory() as folder:
        for total in range(100, trials + 1, 100):  # a search that goes on is the same search
            search(
                space_of(parameters),
                toy,
                MINIMIZE,
                trials=total,
                sampler=sampler,
                storage=Path(folder) / "study.db",
            )
            times.append(time.perf_counter())
    hundreds = [b - a for a, b in itertools.pairwise(times)]
    totals = [t - times[0] for t in times[1:]]
    return {
        "trials": trials,
        "parameters": parameters,
        "history": history,
        "hundreds": hundreds,
        "growth": exponent(totals),
    }


def exponent(totals: list[float]) -> float:
    """The slope of the logarithm of total time over that of the number of hundreds."""
    if len(totals) < 2:
        return math.nan
    xs = [math.log(i) for i in range(1, len(totals) + 1)]
    ys = [math.log(total) for total in totals]
    return statistics.linear_regression(xs, ys).slope


def trials_per_second(workers: int, trials: int, seconds: float) -> float:
    """From the first evaluation's start to the last one's end."""
    space = Space({"x": Real(0.0, 1.0), "seconds": Choice((seconds,))})
    with tempfile.TemporaryDirectory() as folder:
        result = search(
            space,
            burn,
            MINIMIZE,
            trials=trials,
            sampler="random",
            workers=workers,
            storage=Path(folder) / "study.db",
        )
    began = min(t["attributes"]["began"] for t in result.trials)
    ended = max(t["attributes"]["ended"] for t in result.trials)
    return len(result.trials) / (ended - began)


def speedup(trials: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Trials in a second of one and of two workers, taken in turn; medians."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, measured in rates.items():
            measured.append(trials_per_second(workers, trials, seconds))
    pairs = zip(rates[1], rates[2], strict=True)
    return {
        "trials": trials,
        "core_seconds": seconds,
        "one": statistics.median(rates[1]),
        "two": statistics.median(rates[2]),
        "speedup": statistics.median(two / one for one, two in pairs),
    }


def main() -> None:
    """Measure, print, and write bench/results/search_engine.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000, help="trials of the growth")
    parser.add_argument("--parameters", type=int, nargs="+", default=[20, 50])
    parser.add_argument("--core-seconds", type=float, default=2.0)
    parser.add_argument("--burns", type=int, default=12, help="trials of the workers")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    costs = [overhead(count, storage) for storage in STORAGES for count in args.parameters]
    print(tabulate(costs, headers="keys", floatfmt=".4f"))
    bounds = (TPESampler().history, 10**9)
    grown = [growth(args.trials, args.parameters[0], history) for history in bounds]
    for each in grown:
        print(f"history {each['history']}: {json.dumps([round(h, 2) for h in each['hundreds']])}")
        print(f"growth {each['growth']:.3f}")
    workers = speedup(args.burns, args.core_seconds, args.rounds)
    print(tabulate([workers], headers="keys", floatfmt=".3f"))
    results = {"limits": LIMITS, "overhead": costs, "growth": grown, "workers": workers}
    print(save("search_engine", results))


if __name__ == "__main__":
    main()
