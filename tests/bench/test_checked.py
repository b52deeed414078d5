"""Benchmarks check results before they time, and no benchmark has a clock of its own."""

import ast
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

BENCH = Path(__file__).parents[2] / "bench"
FILES = {str(f.relative_to(BENCH)): f for f in sorted(BENCH.rglob("*.py"))}
CLOCKS = ("perf_counter", "monotonic", "process_time", "thread_time", "timeit")
ATTRIBUTES = ("cuda.Event", "os.times", ".ru_utime", "testing.do_bench")
MODULES = ("time", "timeit", "torch.utils.benchmark")
CLOCK_OWNERS = {
    "measuring/checked.py": "the helper: it checks, then times",
    "measuring/progress.py": "progress and budgets; its users are listed below",
    "simulation_speed.py": "processor time of child processes; every run is bit-exact or raises",
    "search_engine.py": "times the gaps between the trials of a search, inside its callback",
    "kills.py": "ends processes after a drawn time; stores no duration",
    "rank_kills.py": "ends processes after a drawn time; its figure is the count of kills",
    "decode_cpu.py": "a decoder goes on from step to step; its first logits are checked",
    "decode_files.py": "the same loop times llama.cpp in an interpreter without this project",
    "serve.py": "latency of concurrent requests, whose answers are compared one by one",
    "imdb/run.py": "budget of a run that trains for hours; its figure is accuracy",
    "ptq/rows.py": "duration of a row whose figure is perplexity, in rivals' interpreters too",
    "search/run.py": "budget of a search of hours, shared by processes",
}
"""File -> why it may read a clock."""
PROGRESS = {
    "area_rows.py": "time of each synthesis in the work files of a run of hours",
    "kernels.py": "prints the duration of a section",
    "mutants.py": "duration of a campaign whose figure is the count of faults",
    "prune_gpu.py": "budget of the run",
    "ptq/allocation.py": "duration of the whole study",
    "right.py": "duration of a campaign whose figure is the count of models",
    "right_passes.py": "duration of a campaign whose figure is the count of sequences",
    "run.py": "prints the duration of each benchmark",
    "safe.py": "duration of a campaign whose figure is the count of files",
    "shard_matrix.py": "duration of a campaign whose figure is the count of equal steps",
    "guard.py": "prints the duration of the run",
    "export.py": "duration of a row whose figure is whether the file loads",
    "hardware_pareto.py": "budget of routing, duration of a search",
}
"""File -> what it uses `measuring.progress` for."""


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in [n for n in sys.modules if n.split(".")[0] == "measuring"]:
        del sys.modules[name]


@pytest.fixture
def checked(on_the_path):
    import measuring.checked

    return measuring.checked


def reads_clock(tree):
    """Return the names of clocks that a program imports, calls, or has in the text of a child."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name in MODULES}
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            found.add(node.module)
        elif isinstance(node, ast.Attribute):
            found |= {name for name in ATTRIBUTES if ast.unparse(node).endswith(name)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {c for c in CLOCKS if f"{c}(" in node.value}
    return found


@pytest.mark.parametrize("name", FILES)
def test_only_the_helper_reads_a_clock(name):
    found = reads_clock(ast.parse(FILES[name].read_text()))
    assert (name in CLOCK_OWNERS) == bool(found), f"{name}: {sorted(found)}"


def test_the_search_for_clocks_finds_every_way_to_read_one():
    ways = ["import time", "from time import perf_counter as p", "import timeit"]
    ways += ["torch.cuda.Event(enable_timing=True)", "CHILD = 'start = time.perf_counter()'"]
    ways += ["os.times()", "triton.testing.do_bench(f)", "used.ru_utime"]
    ways += ["from torch.utils.benchmark import Timer"]
    assert all(reads_clock(ast.parse(way)) for way in ways)
    assert not reads_clock(ast.parse("from datetime import time\nx = 'timeit, not called'"))


@pytest.mark.parametrize("name", FILES)
def test_progress_is_used_where_it_is_listed(name):
    text = FILES[name].read_text()
    assert (name in PROGRESS) == ("from measuring.progress import" in text), name


def test_the_tables_name_files_that_exist():
    assert set(CLOCK_OWNERS) | set(PROGRESS) <= set(FILES)


X = torch.tensor([1.0, -2.0])
WRONG = {
    "zero everywhere, its reference is not": (torch.zeros(2), X),
    "proves nothing": (torch.zeros(2), torch.zeros(2)),
    "differs by 0.447": (torch.tensor([2.0, -2.0]), X),
    "it is not finite": (torch.tensor([math.nan, -2.0]), X),
    "its reference is not finite": (X, torch.tensor([math.inf, 1.0])),
    "shape [2], not [2, 1]": (X, X[:, None]),
    "the reference has [\"['gradient']\", \"['output']\"]": (
        {"output": X},
        {"output": X, "gradient": X},
    ),
    "['gradient']: is zero everywhere": (
        {"output": X, "gradient": 0 * X},
        {"output": X, "gradient": X},
    ),
    "is 'b', the reference is 'a'": ("b", "a"),
    "has []": (None, None),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_result_is_refused_and_never_timed(checked, words):
    value, expected = WRONG[words]
    calls = []
    program = checked.Timed(lambda: calls.append(1) or value, expected, tolerance=0.1)
    with pytest.raises(checked.WrongResultError) as raised:
        checked.compare({"right": checked.Timed(lambda: X, X), "program": program})
    assert words in str(raised.value) and str(raised.value).startswith("program")
    assert len(calls) == 1  # by the check


@pytest.mark.parametrize(
    "value", [X, {"a": [X, 3], "b": "word"}, np.arange(3.0), 2.5, (torch.arange(4), None)]
)
def test_equal_results_have_no_error(checked, value):
    assert checked.check("program", value, value) == 0.0


def test_the_error_is_relative_and_within_its_tolerance(checked):
    assert checked.check("program", X * 1.01, X, 0.011) == pytest.approx(0.01)


def test_programs_take_turns_after_their_check(checked):
    calls = []
    programs = {
        n: checked.Timed(lambda n=n: calls.append(n) or X, X, computes=lambda: X) for n in "ab"
    }
    times = checked.compare(programs, rounds=4, warm_up=1)
    assert calls == ["b", "a", "a", "b", "b", "a", "a", "b", "b", "a"]
    assert all(len(t.seconds) == 4 and t.error == 0.0 for t in times.values())
    assert times["a"].low <= times["a"].median and len(times["a"].ratios(times["b"])) == 4
    assert set(times["a"].spread()) == {"median_us", "min_us", "max_us"}


def test_every_copy_of_a_program_is_checked(checked):
    calls = [lambda: X, lambda: X + 1]
    with pytest.raises(checked.WrongResultError, match="copies: differs"):
        checked.compare({"copies": checked.Timed(calls, X)})


def test_a_long_job_is_reported_only_if_its_result_is_right(checked):
    done = checked.once("job", lambda: 3, lambda result: result == 3)
    assert done.result == 3 and done.seconds >= 0 and done.processor_seconds >= 0
    with pytest.raises(checked.WrongResultError, match="job: the result is wrong"):
        checked.once("job", lambda: 3, lambda result: result == 4)


def test_sound_values_are_finite_and_not_all_zero(checked):
    assert checked.is_sound([X, torch.zeros(2)])
    assert not checked.is_sound(torch.zeros(2)) and not checked.is_sound([X, X / 0])


def test_a_statement_in_a_new_process_is_checked(checked):
    assert checked.in_new_process("import json", setup="import os", correct="json.dumps(1)") >= 0
    with pytest.raises(checked.WrongResultError, match="x = 1: AssertionError"):
        checked.in_new_process("x = 1", setup="", correct="x == 2")


def test_a_budget_ends(checked):
    from measuring.progress import Deadline

    assert Deadline(0.0).is_over and not Deadline(60.0).is_over and Deadline(60.0).left > 50
