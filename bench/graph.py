"""How much faster the optimised and compiled graph is than the plain walk, per training step.

Every variant runs the same step on the same inputs, in turn, round after round, so that a busy
machine slows all of them alike. The figure of a variant is its median time; its speed-up is the
median over rounds of (plain walk / variant).

    python bench/graph.py [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "graph":
    # Another script of this folder wants the package whose name this file bears: hand it over.
    __path__ = [str(ROOT / "src/graph")]
else:
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != ROOT / "bench"]
    sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "src")]
    sys.path.append(str(ROOT / "bench"))
    import digits_graph
    from measuring.checked import Timed, Times, compare
    from measuring.record import save

    from graph.backward import backward
    from graph.compiler import compile_graph
    from graph.evaluator import evaluate
    from graph.ir import Graph
    from graph.passes import optimize

BASELINE, TARGET, REQUIRED = "walk", "optimised, compiled", 1.5
TOLERANCE = 1e-10
"""Relative error in float64 where sums are taken in another order."""
GATED = "digits MLP, batch 64"  # the step of the example; the others are for comparison


class Workload(NamedTuple):
    """A graph, what to compute of it, and values to compute it from."""

    graph: Graph
    outputs: list[str]
    inputs: Mapping[str, Any]


def digits_step(batch: int) -> Workload:
    """One step of gradient descent of the digits example."""
    step = digits_graph.build_step(batch)
    batches = digits_graph.batches(digits_graph.load(), batch, seed=0)
    inputs = {**digits_graph.initial_weights(), **next(batches)}
    return Workload(step.graph, step.outputs, inputs)


def gelu_gradient(rows: int) -> Workload:
    """Loss and gradients of a scaled gelu on `rows` × 1024 numbers: elementwise work only."""
    graph = Graph()
    x, scale = graph.add_input("x", (rows, 1024)), graph.add_input("scale", (1024,))
    h = x * scale
    inner = (h + h * h * h * 0.044715) * float(np.sqrt(2 / np.pi))
    loss = (h * 0.5 * (inner.apply("tanh") + 1.0)).apply("mean")
    graph, gradients = backward(graph, loss)
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(rows, 1024)), "scale": rng.normal(size=1024)}
    return Workload(graph, [loss.name, *(node.name for node in gradients.values())], inputs)


WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    "digits MLP, batch 64": lambda: digits_step(64),
    "digits MLP, batch 256": lambda: digits_step(256),
    "gelu gradient, 512 × 1024": lambda: gelu_gradient(512),
}


def variants(work: Workload) -> dict[str, Callable[[], object]]:
    """The ways to run a workload, from the plain walk to everything at once."""
    optimised = optimize(work.graph, work.outputs).graph
    plain, fast = (compile_graph(graph, work.outputs) for graph in (work.graph, optimised))
    return {
        BASELINE: lambda: evaluate(work.graph, work.inputs, work.outputs),
        "optimised, walk": lambda: evaluate(optimised, work.inputs, work.outputs),
        "compiled": lambda: plain(work.inputs),
        TARGET: lambda: fast(work.inputs),
    }


def measure(work: Workload, rounds: int) -> dict[str, Times]:
    """Compare every variant with the plain walk, then time all of them in turn."""
    runs = variants(work)

    def values(run: Callable[[], Any]) -> dict[str, Any]:
        found = run()
        return {name: np.asarray(found[name]) for name in work.outputs}

    expected = values(runs[BASELINE])
    programs = {
        name: Timed(run, expected, TOLERANCE, lambda run=run: values(run))
        for name, run in runs.items()
    }
    return compare(programs, rounds=rounds, warm_up=max(3, rounds // 10))


def records(rounds: int) -> Iterator[dict[str, Any]]:
    """One record per workload and variant."""
    for title, make in WORKLOADS.items():
        times = measure(make(), rounds)
        for name, each in times.items():
            ratios = times[BASELINE].ratios(each)
            yield {
                "workload": title,
                "variant": name,
                "microseconds": round(each.median * 1e6, 1),
                "speedup": round(statistics.median(ratios), 2),
                "rounds": rounds,
            }


def table(rows: list[dict[str, Any]]) -> str:
    """The records for reading."""
    lines = [f"{'workload':<28} {'variant':<22} {'µs per step':>12} {'speed-up':>9}"]
    for row in rows:
        figures = f"{row['microseconds']:>12.1f} {row['speedup']:>8.2f}×"
        lines.append(f"{row['workload']:<28} {row['variant']:<22} {figures}")
    return "\n".join(lines)


def main() -> int:
    """Measure, write the results, and fail if the speed-up is too small."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    rows = list(records(options.rounds))
    print(table(rows))
    print(save("graph", {"required": REQUIRED, "rows": rows}))
    (gated,) = (r for r in rows if (r["workload"], r["variant"]) == (GATED, TARGET))
    verdict = "met" if gated["speedup"] >= REQUIRED else "missed"
    print(f"required {REQUIRED}× on {GATED}: {verdict} with {gated['speedup']}×")
    return 0 if verdict == "met" else 1


if __name__ == "__main__":
    sys.exit(main())
