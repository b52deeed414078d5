"""`make guard`: verdicts, workers of two sides, and a worktree that never stays behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = ("guard", "guard_rows", "measuring")


@pytest.fixture
def guard(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import guard

    yield guard
    for name in [n for n in sys.modules if n.split(".")[0] in OWN]:
        del sys.modules[name]


SLOW = [(1.0, 1.2), (1.0, 1.21), (1.0, 1.19), (1.0, 1.2), (1.0, 1.2)]
NOISY = [(1.0, 1.2), (1.0, 0.5), (1.0, 2.5), (1.0, 0.6), (1.0, 2.0)]
CASES = {
    "SLOWER": SLOW,
    "equal": [(1.0, 1.05)] * 5,
    "faster": [(new, old) for old, new in SLOW],
}


@pytest.mark.parametrize("verdict", CASES)
def test_the_verdict_follows_the_ratio(guard, verdict):
    result = guard.judged("attention", "cpu", CASES[verdict])
    assert result.verdict == verdict and result.is_failure == (verdict == "SLOWER")
    assert result.rounds == 5 and result.unit == "s"


def test_a_ratio_within_the_noise_does_not_fail(guard):
    result = guard.judged("attention", "cpu", NOISY)
    assert result.ratio > guard.MOST and result.noise > 0.2 and not result.is_failure


def test_memory_that_grows_fails(guard):
    result = guard.judged("peak memory: capture, quantise, pack", "cpu", [(100.0, 120.0)] * 5)
    assert result.verdict == "LARGER" and result.is_failure


def test_the_rows_cover_what_must_not_become_slower(guard):
    words = ("capture BERT-base", "quantise pass", "forward", "backward", "QAT step", "1 rows")
    words += ("16 rows", "256 rows", "decode", "attention", "save and load", "GPTQ", "cycle model")
    words += ("emit", "Verilator", "search", "mase --help", "import chop", "peak memory")
    assert all(any(word in name for name in guard.ROWS) for word in words)


def test_the_formats_of_the_rows_exist(guard):
    import guard_rows

    from chop.nn.quantizers import FORMATS

    for name in guard_rows.FORMATS:
        assert FORMATS[name](**guard_rows.SETTINGS.get(name, {})).name == name


def test_the_baseline_is_a_commit_of_this_repository(guard):
    commit, _ = guard.baseline()
    assert len(commit) == 40 and set(commit) <= set("0123456789abcdef")


WORKER = """
import json, sys
print(json.dumps({{"value": {value!r}, "source": {source!r}}}), flush=True)
for _ in sys.stdin:
    print(json.dumps({seconds}), flush=True)
"""


@pytest.fixture
def sides(guard, monkeypatch, tmp_path):
    """Two folders whose workers answer what a test wants."""
    places = {name: tmp_path / name for name in ("old", "new")}
    answers = {name: {"value": "same", "seconds": 0.5} for name in places}
    popen = subprocess.Popen

    def start(words, *, cwd, **more):
        name = next(n for n, place in places.items() if place == cwd)
        source = answers[name].get("source", str(cwd / "src" / "chop" / "__init__.py"))
        settings = {**answers[name], "source": source}
        program = settings.get("program") or WORKER.format(**settings)
        return popen([sys.executable, "-c", program], **more)

    monkeypatch.setattr(guard.subprocess, "Popen", start)
    return places, answers


def test_both_sides_take_turns_and_are_compared(guard, sides):
    places, answers = sides
    answers["new"]["seconds"] = 0.75
    result = guard.compare_row("attention", "cpu", places, seconds=2.0)
    assert (result.old, result.new, result.ratio) == (0.5, 0.75, 1.5)
    assert result.verdict == "SLOWER" and result.noise == 0.0


def test_results_that_differ_fail_before_anything_is_timed(guard, sides):
    places, answers = sides
    answers["new"]["value"] = "other"
    result = guard.compare_row("attention", "cpu", places, seconds=1.0)
    assert result.verdict == "RESULTS DIFFER" and result.ratio is None and result.is_failure


def with_baseline(guard, monkeypatch, tmp_path, text):
    file = tmp_path / "guard_baseline.txt"
    file.write_text(text)
    monkeypatch.setattr(guard, "BASELINE", file)


def test_a_row_that_changed_on_purpose_is_timed(guard, sides, monkeypatch, tmp_path):
    with_baseline(guard, monkeypatch, tmp_path, f"{'0' * 40}\nattention: rounds once\n")
    places, answers = sides
    answers["new"]["value"] = "other"
    result = guard.compare_row("attention", "cpu", places, seconds=1.0)
    assert result.verdict == "equal" and result.ratio == 1.0
    assert guard.baseline() == ("0" * 40, {"attention": "rounds once"})


def test_a_changed_row_must_exist(guard, monkeypatch, tmp_path):
    with_baseline(guard, monkeypatch, tmp_path, f"{'0' * 40}\natention: rounds once\n")
    with pytest.raises(guard.GuardError, match="no row atention"):
        guard.baseline()


FAULTS = {
    "FAILED: new code: ValueError: no such name": {"program": "raise ValueError('no such name')"},
    "FAILED: new code: exit code 3": {"program": "import sys; sys.exit(3)"},
    "FAILED: new code: /elsewhere/chop is not under": {"source": "/elsewhere/chop"},
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_worker_that_fails_names_its_side(guard, sides, words):
    places, answers = sides
    answers["new"] |= FAULTS[words]
    result = guard.compare_row("attention", "cpu", places, seconds=1.0)
    assert result.verdict.startswith(words) and result.is_failure


def test_a_row_without_its_tool_is_skipped(guard, monkeypatch):
    monkeypatch.setattr(guard.shutil, "which", lambda tool: None)
    result = guard.compare_row("Verilator run", "cpu", {}, seconds=1.0)
    assert result.verdict == "skipped: no g++" and not result.is_failure


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", *identity, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("ending", [None, KeyboardInterrupt, ValueError])
def test_no_worktree_stays_behind(guard, monkeypatch, tmp_path, ending):
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("old")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(guard, "ROOT", tmp_path)
    try:
        with guard.baseline_code("HEAD") as place:
            assert (place / "file").read_text() == "old"
            if ending is not None:
                raise ending
    except (KeyboardInterrupt, ValueError):
        pass
    assert not place.parent.exists()
    assert len(git(tmp_path, "worktree", "list").splitlines()) == 1


def test_an_unknown_commit_is_refused(guard, monkeypatch, tmp_path):
    git(tmp_path, "init", "-q")
    monkeypatch.setattr(guard, "ROOT", tmp_path)
    with (
        pytest.raises(guard.GuardError, match="git worktree add: fatal"),
        guard.baseline_code("0" * 40),
    ):
        pass


@pytest.mark.slow
def test_a_worker_prints_its_digest_and_measures_on_demand():
    worker = [sys.executable, str(ROOT / "bench" / "guard_rows.py"), "attention", "cpu"]
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        worker, input="\n\n", capture_output=True, text=True, env=environment, check=True
    )
    first, *seconds = map(json.loads, done.stdout.splitlines())
    assert Path(first["source"]).is_relative_to(ROOT / "src") and len(first["value"]) == 16
    assert len(seconds) == 2 and all(s > 0 for s in seconds)


def test_a_result_of_zeros_is_not_timed(guard):
    import guard_rows
    import torch

    with pytest.raises(guard_rows.WrongResultError, match="zero or not finite"):
        guard_rows.digest(torch.zeros(3))
    assert guard_rows.digest([torch.ones(2)]) != guard_rows.digest([torch.ones(3)])
