"""The planner against every plan of small random problems.

Random small models, meshes of one to three axes, training and inference, and the strategies that
only save memory. Every plan of a problem is priced. The planner must find the fastest of all, the
fastest within each of three limits of memory, and a bound that no plan beats, with and without
overlap of communication. The counts go to section "shard brute force" of bench/results/right.json.

    python bench/shard_brute_force.py [--problems N]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# This folder last: its graph.py is not the package.
sys.path.sort(key=lambda folder: folder == str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from distributed.test_optimum import small_problem
from measuring.record import save_section
from tabulate import tabulate

from chop.distributed.memory_search import Solver
from chop.distributed.optimum import DoesNotFitError
from chop.distributed.problem import PlanningProblem

SECTION = "shard brute force"
EQUAL = 1e-9
"""Relative difference up to which two times are equal."""


def main() -> int:
    """Solve the problems; 1 where a plan beats the planner or its bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--problems", type=int, default=600, help="with and without overlap")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    for seed in range(options.problems):
        for overlaps in (False, True):
            problem, costs = small_problem(seed, overlaps=overlaps)
            counts["problems"] += 1
            counts["plans priced"] += len(costs)
            for limit, faults in solved(problem, costs).items():
                counts["solutions"] += 1
                counts["limits that nothing fits"] += limit < min(size for _, size in costs)
                facts = {"seed": seed, "overlaps": overlaps, "limit": limit}
                wrong += [{**facts, "fault": fault} for fault in faults]
    print(tabulate(counts.items(), ("count", "number")))
    print(tabulate(wrong, "keys"))
    if options.problems >= 500:
        print(save_section("right", SECTION, {**counts, "wrong": len(wrong), "faults": wrong}))
    return int(bool(wrong))


def solved(
    problem: PlanningProblem, costs: Sequence[tuple[float, float]]
) -> dict[float, list[str]]:
    """Return the faults of the planner's answer for each limit of memory.

    `costs`: seconds and bytes of every plan of the problem.
    """
    sizes = sorted({size for _, size in costs})
    limits = [sizes[0] - 1, sizes[0], sizes[len(sizes) // 3], sizes[len(sizes) // 2], math.inf]
    return {limit: _faults(problem, costs, limit) for limit in limits}


def _faults(
    problem: PlanningProblem, costs: Sequence[tuple[float, float]], limit: float
) -> list[str]:
    fitting = [seconds for seconds, size in costs if size <= limit]
    try:
        optimum = Solver(problem).solve(None if math.isinf(limit) else limit + 0.5)
    except DoesNotFitError:
        return ["says that nothing fits"] if fitting else []
    if not fitting:
        return ["says that something fits"]
    least, best = min(fitting), optimum.best
    checks = {
        "not the fastest": not math.isclose(best.seconds, least, rel_tol=EQUAL),
        "too large": best.needs > limit + 0.5,
        "a plan is below the bound": optimum.bound > least * (1 + EQUAL),
    }
    return [fault for fault, is_so in checks.items() if is_so]


if __name__ == "__main__":
    sys.exit(main())
