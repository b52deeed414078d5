"""The bench of random models resumes, counts deadlocks apart, and fails on them."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def right(monkeypatch, tmp_path):
    """The bench, with results in a scratch folder and outcomes by seed instead of simulations."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import right

    def runs(seeds, workers):
        right.asked = seeds
        for start in range(0, len(seeds), 2):
            outcome = ["equal", "refused", "deadlock"]
            yield [right.Finding(s, outcome[s % 3], "why") for s in seeds[start : start + 2]]

    saved = []
    monkeypatch.setattr(right, "_run", runs)
    monkeypatch.setattr(right, "save_section", lambda *args: saved.append(args[-1]))
    monkeypatch.setattr(right.toolchain, "verilator", lambda: Verilator)
    right.saved = saved
    return right


class Verilator:
    version = staticmethod(lambda: "5")


def run(right, monkeypatch, folder, models):
    """Run the bench; return its exit code and counts."""
    monkeypatch.setattr(sys, "argv", ["right.py", "--models", str(models), "--work", str(folder)])
    with pytest.raises(SystemExit) as ended:
        right.main()
    return ended.value.code, right.saved[-1]


def test_a_run_resumes_with_the_seeds_that_are_missing(right, monkeypatch, tmp_path):
    code, found = run(right, monkeypatch, tmp_path, 2)
    assert (code, found["equal"], found["refused"], found["deadlocks"]) == (0, 1, 1, 0)
    (kept,) = tmp_path.glob("findings-*.jsonl")
    with kept.open("a") as file:
        file.write('{"seed": 2, "outco')  # the line of a run that was killed
    code, found = run(right, monkeypatch, tmp_path, 5)
    assert right.asked == [2, 3, 4]
    assert (code, found["models"], found["deadlocks"], found["wrong"]) == (1, 5, 1, 0)
    assert found["deadlock_seeds"] == {"2": "why"} and found["models_of_this_run"] == 3


def test_findings_of_other_code_are_not_reused(right, monkeypatch, tmp_path):
    run(right, monkeypatch, tmp_path, 2)
    monkeypatch.setattr(right, "_version", lambda: "other")
    run(right, monkeypatch, tmp_path, 2)
    assert right.asked == [0, 1] and len(list(tmp_path.glob("findings-*.jsonl"))) == 2
