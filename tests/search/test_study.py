import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import optuna
import pytest
import torch
import toys

from chop.errors import ConfigError, MissingDependencyError, SearchError
from chop.search import Choice, ProgressBar, Space, TrialContext, load_study, search
from chop.search.progress import Progress
from chop.search.search_plan import WorkerPlan
from chop.search.trial import trial_seed
from chop.search.trial_queue import Stop, TrialQueue

LOSS = {"loss": "minimize"}
SMALL = Space({"x": Choice((1, 2, 3)), "kind": Choice(("a",))})


def run(tmp_path, evaluate=toys.loss, space=toys.SPACE, objectives=LOSS, **options):
    given = {"trials": 6, "sampler": "random", "storage": tmp_path / "study.journal"}
    return search(space, evaluate, objectives, **{**given, **options})


def test_a_trial_is_plain_data(tmp_path):
    def evaluate(point, trial):
        trial.attribute("layers", ["a", "b"])
        return {"loss": torch.tensor(0.5), "accuracy": torch.tensor(0.25)}

    result = run(tmp_path, evaluate, trials=1)
    (trial,) = json.loads(json.dumps(result.trials))
    seconds = trial.pop("seconds")
    assert seconds >= 0
    assert trial.pop("params").keys() == toys.SPACE.dimensions.keys()
    assert trial == {
        "number": 0,
        "state": "complete",
        "values": {"loss": 0.5},
        "attributes": {"layers": ["a", "b"], "accuracy": 0.25},
        "reason": None,
    }


def test_the_best_trial_has_the_best_value(tmp_path):
    for direction, best in (("minimize", min), ("maximize", max)):
        result = run(tmp_path, name=direction, objectives={"loss": direction})
        assert result.best["values"]["loss"] == best(t["values"]["loss"] for t in result.trials)


def test_a_single_number_is_enough_for_a_single_objective(tmp_path):
    result = run(tmp_path, lambda point, trial: point["x"])
    assert result.best["values"]["loss"] == min(t["params"]["x"] for t in result.trials)


def test_a_search_started_again_does_not_start_over(tmp_path):
    calls = []

    def evaluate(point, trial):
        calls.append(trial.number)
        return toys.loss(point, trial)

    for trials, expected in ((4, 4), (4, 4), (7, 7)):
        result = run(tmp_path, evaluate, trials=trials)
        assert len(result.trials) == len(calls) == expected
        assert result.stopped is None


def fails(error):
    def evaluate(point, trial):
        if trial.number == 1:
            raise error
        return {"loss": float("nan") if trial.number == 2 else 1.0}

    return evaluate


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("first\nbad width"), r"ValueError: bad width \(test_study\.py:\d+ in evaluate"),
        pytest.param(
            MemoryError(), r"MemoryError \(test_study\.py", marks=pytest.mark.slow, id="MemoryError"
        ),
        (torch.OutOfMemoryError("CUDA out of memory."), "OutOfMemoryError: CUDA out of memory"),
        (SystemExit(3), "SystemExit: 3"),
    ],
    ids=lambda case: type(case).__name__,
)
def test_a_trial_that_fails_is_recorded_and_the_search_goes_on(tmp_path, error, reason):
    result = run(tmp_path, fails(error), trials=5)
    states = [t["state"] for t in result.trials]
    assert states == ["complete", "failed", "failed", "complete", "complete"]
    assert re.match(reason, result.trials[1]["reason"])
    assert result.trials[2]["reason"].startswith("SearchError: loss is nan")
    assert result.trials[2]["values"] == {}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"los": 1.0}, "evaluate gave no 'loss'. It gave: los."),
        ({}, "evaluate gave no 'loss'. It gave: nothing."),
        ("good", "evaluate gave 'good'. Allowed: {objective: value}."),
        ({"loss": "good"}, "loss is 'good'. Allowed: a number."),
        ({"loss": float("inf")}, "loss is inf."),
        ({"loss": 1.0, "model": object}, "trial 0: attribute 'model' cannot be written as JSON"),
    ],
)
def test_a_result_that_is_none_is_a_failure_that_says_why(tmp_path, given, reason):
    result = run(tmp_path, lambda point, trial: given, trials=1)
    assert result.trials[0]["state"] == "failed"
    assert reason in result.trials[0]["reason"]
    with pytest.raises(SearchError, match=r"no trial has a result\. The last one failed: "):
        _ = result.best


def test_the_same_point_is_evaluated_once(tmp_path):
    calls = []

    def evaluate(point, trial):
        calls.append(point["x"])
        trial.constraint("odd", point["x"] % 2 - 1)
        return {"loss": point["x"]}

    result = run(tmp_path, evaluate, SMALL, trials=3)
    assert sorted(calls) == [1, 2, 3]
    copies = [t for t in result.trials if "copied_from" in t["attributes"]]
    assert copies, "three draws of three values repeat one, with this seed"
    for copy in copies:
        origin = result.trials[copy["attributes"]["copied_from"]]
        assert (copy["values"], copy["params"]) == (origin["values"], origin["params"])
        assert copy["attributes"]["constraints"] == origin["attributes"]["constraints"]
        assert copy["seconds"] is None


def test_the_copy_of_a_failure_is_a_failure(tmp_path):
    def evaluate(point, trial):
        raise ValueError("never")

    result = run(tmp_path, evaluate, SMALL, trials=3)
    copies = [t for t in result.trials if "copied_from" in t["attributes"]]
    assert copies
    assert {t["state"] for t in copies} == {"failed"}
    assert all(t["reason"].startswith("ValueError: never") for t in copies)


@pytest.mark.parametrize("sampler", ["random", "tpe", "grid", "brute"])
def test_a_search_ends_when_its_space_has_no_more_points(tmp_path, sampler):
    result = run(tmp_path, space=SMALL, trials=50, sampler=sampler)
    assert result.stopped == "its space is exhausted: 3 points"
    assert {t["params"]["x"] for t in result.trials} == {1, 2, 3}


class Overcounted(Space):
    """Says that it has more points than it has."""

    @property
    def size(self):
        return 1000


def test_a_search_whose_space_is_smaller_than_it_says_ends_too(tmp_path):
    space = Overcounted(SMALL.dimensions)
    result = run(tmp_path, space=space, trials=50)
    assert result.stopped == "its space is exhausted: 3 points"


def test_a_sampler_that_repeats_itself_is_helped_to_new_points(tmp_path):
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        fixed = optuna.samplers.PartialFixedSampler(
            {"x": 3, "y": 4, "kind": "a"}, optuna.samplers.RandomSampler(seed=0)
        )
    result = run(tmp_path, sampler=fixed, trials=5)
    counted = [t for t in result.trials if "copied_from" not in t["attributes"]]
    assert len({tuple(t["params"].values()) for t in counted}) == 5
    assert result.stopped is None


def test_two_that_choose_the_same_point_at_once_evaluate_it_once(tmp_path):
    space = Space({"x": Choice((1,))})
    plan = WorkerPlan(
        "s", space, toys.loss, LOSS, "random", "none", 5, str(tmp_path / "s.db"), tmp_path
    )
    one, two = TrialQueue.open(plan), TrialQueue.open(plan)
    first, second = one.claim(), two.claim()
    assert one.choose(first)[1] is None
    twin = two.choose(second)[1]
    assert twin.number == first.number
    two.hand_in_copy(second, twin)
    (_, record) = load_study("s", tmp_path / "s.db").trials
    assert (record["state"], record["attributes"]) == ("failed", {"copied_from": 0})
    assert record["reason"] == "trial 0 has the same point and is not finished"


def test_only_as_many_trials_are_taken_as_are_wanted(tmp_path):
    plan = WorkerPlan(
        "s", toys.SPACE, toys.loss, LOSS, "random", "none", 2, str(tmp_path / "s.db"), tmp_path
    )
    queues = [TrialQueue.open(plan) for _ in range(3)]
    taken = [queue.claim() for queue in queues]
    assert [t is None for t in taken] == [False, False, True], "two are in other hands"
    for queue, trial in zip(queues[:2], taken[:2], strict=True):
        queue.choose(trial)
        queue.hand_in(trial, optuna.trial.TrialState.COMPLETE, [1.0], {})
    assert queues[2].claim() == Stop()


def test_a_trial_left_by_a_desk_that_closed_is_free(tmp_path):
    plan = WorkerPlan(
        "s", toys.SPACE, toys.loss, LOSS, "random", "none", 1, str(tmp_path / "s.db"), tmp_path
    )
    left = TrialQueue.open(plan)
    trial = left.claim()
    left.close()
    assert TrialQueue.open(plan).claim().number == trial.number


def die(queue):
    """A worker of the queue's run takes a trial and its process is gone."""
    queue.me = dataclasses.replace(queue.me, process=2**22 + 1, token="dead")
    return queue.claim().number


def test_a_trial_whose_workers_keep_dying_is_given_up(tmp_path):
    plan = WorkerPlan(
        "s", toys.SPACE, toys.loss, LOSS, "random", "none", 1, str(tmp_path / "s.db"), tmp_path
    )
    assert [die(TrialQueue.open(plan)) for _ in range(3)] == [0, 0, 0], "it is retried twice"
    assert TrialQueue.open(plan).claim() == Stop()
    (trial,) = load_study("s", tmp_path / "s.db").trials
    assert trial["state"] == "failed"
    assert trial["reason"].startswith("its worker died 3 times (killed, or the machine ran out of")


def test_kills_of_the_whole_search_are_not_held_against_a_trial(tmp_path):
    def fresh():
        return WorkerPlan(
            "s", toys.SPACE, toys.loss, LOSS, "random", "none", 1, str(tmp_path / "s.db"), tmp_path
        )

    assert [die(TrialQueue.open(fresh())) for _ in range(6)] == [0] * 6
    assert TrialQueue.open(fresh()).claim().number == 0


def test_constraints_decide_what_is_best(tmp_path):
    def evaluate(point, trial):
        trial.constraint("x at least 5", 5 - point["x"])
        return {"loss": point["x"]}

    result = run(tmp_path, evaluate, trials=20)
    assert result.best["values"]["loss"] == 5
    infeasible = [t for t in result.trials if t["values"]["loss"] < 5]
    assert infeasible
    assert all(
        t["attributes"]["constraints"] == {"x at least 5": 5 - t["values"]["loss"]}
        for t in infeasible
    )


def test_with_several_objectives_there_is_a_front_and_no_best(tmp_path):
    both = {"loss": "minimize", "score": "maximize"}
    values = {0: (1, 1), 1: (2, 2), 2: (2, 1), 3: (0, 0), 4: (2, 2)}

    def evaluate(point, trial):
        return dict(zip(both, values[trial.number], strict=True))

    result = run(tmp_path, evaluate, objectives=both, trials=5)
    assert [t["number"] for t in result.pareto_front()] == [3, 0, 1]
    with pytest.raises(SearchError, match=r"loss, score no trial is best\. Take one from pareto"):
        _ = result.best


def test_initial_points_come_first_and_once(tmp_path):
    first = {"x": 3, "y": 0, "kind": "b"}
    for trials in (4, 6):
        result = run(tmp_path, trials=trials, initial=[first])
    assert len(result.trials) == 6
    assert [t["params"] == first for t in result.trials] == [True] + [False] * 5
    with pytest.raises(ConfigError, match=r"search\.initial\.x: 30 is not in"):
        run(tmp_path, initial=[{"x": 30}])


def test_every_trial_has_a_seed_and_a_folder_of_its_own(tmp_path):
    seen = []

    def evaluate(point, trial):
        seen.append((trial.seed, torch.rand(1).item()))
        if trial.number == 1:
            (trial.directory / "weights.bin").write_bytes(b"1")
        return {"loss": len(list(trial.directory.iterdir()))}

    run(tmp_path, evaluate, trials=3, name="own")
    assert [seed for seed, _ in seen] == [trial_seed("own", number) for number in range(3)]
    assert len(set(seen)) == 3
    torch.manual_seed(seen[0][0])
    assert torch.rand(1).item() == seen[0][1], "torch is seeded with it"
    kept = [path.relative_to(tmp_path) for path in (tmp_path / "own").rglob("*")]
    assert sorted(map(str, kept)) == ["own/trial-00001", "own/trial-00001/weights.bin"]


def test_a_context_can_be_made_by_hand():
    trial = TrialContext(number=3)
    trial.report(0, 1.5)
    trial.attribute("bits", 4)
    trial.constraint("small", -1)
    assert (trial.reports, trial.attributes, trial.constraints) == (
        {0: 1.5},
        {"bits": 4},
        {"small": -1.0},
    )
    with pytest.raises(ConfigError, match="trial 3: attribute 'x' cannot be written as JSON"):
        trial.attribute("x", object())


def test_a_time_limit_ends_the_search(tmp_path, monkeypatch):
    now = time.time()

    def evaluate(point, trial):
        monkeypatch.setattr(time, "time", lambda: now + 60 * (trial.number + 1))
        return toys.loss(point, trial)

    monkeypatch.setattr(time, "time", lambda: now)
    result = run(tmp_path, evaluate, trials=10, timeout=150)
    assert result.stopped == "its time is over"
    assert len(result.trials) == 3


def test_an_interrupt_ends_the_search_and_its_trial_is_done_next_time(tmp_path):
    def evaluate(point, trial):
        if trial.number == 2 and not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(5)
        return toys.loss(point, trial)

    result = run(tmp_path, evaluate)
    assert result.stopped == "it was interrupted"
    assert [t["number"] for t in result.trials] == [0, 1]
    result = run(tmp_path, evaluate)
    assert [t["state"] for t in result.trials] == ["complete"] * 6


def test_a_result_is_saved_as_json_and_csv(tmp_path):
    def evaluate(point, trial):
        trial.constraint("c", -1.0)
        if trial.number == 1:
            raise ValueError("bad")
        return toys.loss(point, trial)

    result = run(tmp_path, evaluate, trials=3, seed=4)
    written = result.save(tmp_path / "out")
    assert [path.name for path in written] == ["study.json", "trials.csv"]
    study = json.loads(written[0].read_text())
    assert study == result.record
    assert {k: study[k] for k in ("name", "objectives", "sampler", "seed")} == {
        "name": "search",
        "objectives": LOSS,
        "sampler": "random",
        "seed": 4,
    }
    with written[1].open() as opened:
        rows = list(csv.DictReader(opened))
    assert [row["state"] for row in rows] == ["complete", "failed", "complete"]
    assert [row["params.x"] for row in rows] == [str(t["params"]["x"]) for t in result.trials]


def test_another_objective_or_other_choices_are_another_study(tmp_path):
    run(tmp_path, space=SMALL, trials=1)
    with pytest.raises(SearchError, match=r"started with objectives \{'loss': 'minimize'\}, not"):
        run(tmp_path, space=SMALL, objectives={"loss": "maximize"})
    other = Space({"x": Choice((1, 2, 4)), "kind": Choice(("a",))})
    with pytest.raises(
        SearchError, match=r"started with dimension 'x' Choice\(values=\(1, 2, 3\)\)"
    ):
        run(tmp_path, space=other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objectives": {"loss": "minimise"}}, "'loss' is to 'minimise'. Did you mean 'minimize'"),
        ({"trials": 0}, "trials is 0. Allowed: 1 or more"),
        ({"retries": -1}, "retries is -1. Allowed: 0 or more"),
        ({"workers": 0}, "workers is 0. Allowed: 1 or more"),
        ({"name": "a/b"}, "name is 'a/b'. Allowed: text without '/'"),
        ({"space": Space({})}, "the space has no dimensions"),
        ({"evaluate": "toys:lost"}, "evaluate is 'toys:lost'. Allowed: 'module:function'"),
        ({"evaluate": "toys:SPACE"}, "evaluate 'toys:SPACE' is a Space"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        run(tmp_path, **changes)


def test_an_empty_mapping_of_objectives_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no objective is given"):
        WorkerPlan("s", SMALL, toys.loss, {}, "tpe", "none", 1, str(tmp_path / "s.db"), tmp_path)


def test_progress_tells_the_best_so_far(tmp_path):
    seen = []
    run(tmp_path, fails(ValueError("bad")), trials=4, on_progress=seen.append)
    assert [p.finished for p in seen] == [1, 2, 3, 4]
    assert seen[0].describe() == "best loss 1 (trial 0)"
    assert seen[-1].describe() == "best loss 1 (trial 0), 2 failed"


def test_progress_with_several_objectives_tells_the_front():
    def trial(number, a, b):
        values = {"a": a, "b": b}
        return {"number": number, "state": "complete", "values": values, "attributes": {}}

    both = {"a": "maximize", "b": "minimize"}
    progress = Progress("s", 3, both, [trial(0, 1, 1), trial(1, 2, 2), trial(2, 1, 3)])
    assert progress.describe() == "best a 2 b 2 (trial 1), 2 on the front"
    assert Progress("s", 3, both, []).describe() == "no result yet"


def test_without_a_terminal_progress_is_plain_lines(tmp_path, capsys):
    run(tmp_path, on_progress=ProgressBar(), trials=3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("search: 1/3 trials, best loss ")
    assert lines[-1].startswith("search: 3/3 trials, best loss ")


def test_on_a_terminal_progress_is_a_bar(tmp_path):
    class Terminal:
        text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

        def isatty(self):
            return True

    terminal = Terminal()
    run(tmp_path, on_progress=ProgressBar(terminal), trials=3)
    assert "3/3" in terminal.text
    assert "best loss" in terminal.text


def test_importing_the_package_needs_no_optional_dependency():
    code = "import sys, chop.search; chop.search.Space; assert 'optuna' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_optuna_a_search_names_the_extra():
    code = "import sys; sys.modules['optuna'] = None\nimport chop.search\nchop.search.search"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "optuna is not installed. Install it: pip install 'masegraph[search]'" in done.stderr
    assert issubclass(MissingDependencyError, ImportError)
