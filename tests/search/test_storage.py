"""A study survives: kills at any moment, on every kind of storage."""

import collections
import datetime
import json
import random
import sqlite3
import sys
import time
from pathlib import Path

import optuna
import pytest
import toys
from covering import first_and_slow
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session

from chop.errors import ConfigError, MissingDependencyError, SearchError
from chop.search import load_study, search
from chop.search.search_plan import WorkerPlan
from chop.search.study_storage import GRACE, HEARTBEAT, JournalStore, is_on_this_machine, open_store
from chop.search.trial_queue import Stop, TrialQueue
from chop.search.worker_identity import WorkerIdentity

OBJECTIVES = {"loss": "minimize"}
TRIALS = 12
FILES = ("study.db", "study.journal")
HOUR = 3600


def plan(storage, directory, **changes):
    given = {
        "name": "search",
        "space": toys.SPACE,
        "evaluate": toys.loss,
        "objectives": OBJECTIVES,
        "sampler": "random",
        "pruner": "none",
        "trials": 5,
        "storage": str(storage),
        "directory": Path(directory),
        "heartbeat_seconds": HOUR,  # however slow the machine, no heartbeat is missed by chance
    }
    return WorkerPlan(**{**given, **changes})


def storages(*, is_slow: bool) -> list:
    """Return the kinds of storage; `is_slow`: all but the journal, the default, are slow."""
    kinds = ["study.journal", "study.db", "postgres"]
    return first_and_slow(kinds, 1 if is_slow else len(kinds))


@pytest.fixture(params=storages(is_slow=False))
def storage(request, tmp_path):
    if request.param == "postgres":
        return request.getfixturevalue("postgres")
    return tmp_path / request.param


def kill_and_go_on(start, storage, folder, name, kills):
    """Kill a search of TRIALS trials again and again, let it end, and give what it evaluated."""
    arguments = (
        f"evaluate=toys.journaled, objectives={OBJECTIVES}, trials={TRIALS}, sampler='random', "
        f"name={name!r}, storage={str(storage)!r}, directory={str(folder)!r}"
    )
    clock = random.Random(name)
    folder.mkdir()
    for _ in range(kills):
        seen = len(toys.evaluated(folder))
        (folder / "most").write_text(str(seen + TRIALS // (kills + 1)))
        process = start(arguments)
        while len(toys.evaluated(folder)) == seen and process.poll() is None:
            time.sleep(0.01)
        time.sleep(clock.uniform(0.0, 0.15))  # the kill may come at any moment
        process.kill()
        process.wait()
    assert 0 < len(toys.evaluated(folder)) < TRIALS, "the search ended before it was killed"
    (folder / "most").unlink()
    assert start(arguments).wait() == 0
    return toys.evaluated(folder)


# Other storages are killed by `make slow`; what a kill leaves in them is tried below in all.
@pytest.mark.parametrize("storage", storages(is_slow=True), indirect=True)
@pytest.mark.parametrize("kills", first_and_slow([1, 5]))
def test_a_killed_search_goes_on_to_its_count_and_repeats_nothing(start, storage, tmp_path, kills):
    name = f"killed-{random.random()}"
    lines = kill_and_go_on(start, storage, tmp_path / "trials", name, kills)
    result = load_study(name, storage)
    counted = [t for t in result.trials if "copied_from" not in t["attributes"]]
    assert len(counted) == TRIALS
    assert {t["state"] for t in counted} == {"complete"}
    points = collections.Counter(json.dumps(line["point"], sort_keys=True) for line in lines)
    assert set(points) == {json.dumps(t["params"], sort_keys=True) for t in counted}
    # A trial killed between its last line and its hand-in must run again; no other may.
    again = collections.Counter(line["number"] for line in lines)
    assert sum(again.values()) - len(again) <= kills
    options = {"trials": TRIALS, "sampler": "random", "name": name}
    whole = search(toys.SPACE, toys.loss, OBJECTIVES, storage=tmp_path / "whole.journal", **options)
    assert [t["params"] for t in result.trials] == [t["params"] for t in whole.trials]


@pytest.mark.share(2)
def test_every_storage_keeps_the_same_study(storage, tmp_path):
    options = {"trials": 12, "name": "kept", "seed": 3}
    here = search(toys.NUMBERS, toys.loss, OBJECTIVES, storage=storage, **options)
    there = search(
        toys.NUMBERS, toys.loss, OBJECTIVES, storage=tmp_path / "other.journal", **options
    )
    strip = [{k: v for k, v in t.items() if k != "seconds"} for t in here.trials]
    assert strip == [{k: v for k, v in t.items() if k != "seconds"} for t in there.trials]
    assert load_study("kept", storage).trials == here.trials


def age_heartbeat(queue, trial, seconds):
    """Make the last heartbeat of a trial `seconds` older, in its store."""
    store = queue.store
    if isinstance(store, JournalStore):
        beat = store.storage.get_trial(trial._trial_id).user_attrs[HEARTBEAT]
        store.storage.set_trial_user_attr(trial._trial_id, HEARTBEAT, beat - seconds)
        return
    with _create_scoped_session(store._backend.scoped_session) as session:
        row = models.TrialHeartbeatModel.where_trial_id(trial._trial_id, session)
        row.heartbeat -= datetime.timedelta(seconds=seconds)


@pytest.mark.share(2)
def test_a_trial_of_a_silent_worker_on_another_machine_is_given_to_the_next(storage, tmp_path):
    name = f"silent-{random.random()}"
    lost = TrialQueue.open(plan(storage, tmp_path, name=name))
    lost.me = WorkerIdentity("elsewhere/1/2", 1, 1, "lost", "run")
    trial = lost.claim()
    point, _ = lost.choose(trial)
    found = TrialQueue.open(plan(storage, tmp_path, name=name, trials=1))
    assert found.claim() is None, "its heartbeat is fresh"
    age_heartbeat(lost, trial, (GRACE - 1) * HOUR)
    assert found.claim() is None, "it has missed fewer heartbeats than it may"
    age_heartbeat(lost, trial, 2 * HOUR)
    taken = found.claim()
    assert taken.number == trial.number
    assert found.choose(taken) == (point, None)
    assert not lost.hand_in(trial, optuna.trial.TrialState.COMPLETE, [1.0], {}), "too late"
    assert found.hand_in(taken, optuna.trial.TrialState.COMPLETE, [2.0], {})
    assert isinstance(found.claim(), Stop)
    assert [t["values"] for t in load_study(name, storage).trials] == [{"loss": 2.0}]


def test_a_heartbeat_keeps_a_long_trial_with_its_worker(storage, tmp_path):
    name = f"beating-{random.random()}"
    far = TrialQueue.open(plan(storage, tmp_path, name=name))
    far.me = WorkerIdentity("elsewhere/1/2", 1, 1, "far", "run")
    trial = far.claim()
    near = TrialQueue.open(plan(storage, tmp_path, name=name, trials=1))
    age_heartbeat(far, trial, (GRACE + 1) * HOUR)
    far.store.beat(trial._trial_id)
    assert near.claim() is None


def test_an_entry_cut_short_by_a_kill_is_dropped_from_a_journal(tmp_path):
    file = tmp_path / "study.journal"
    search(toys.SPACE, toys.loss, OBJECTIVES, trials=3, storage=file)
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines(keepends=True)[-1][:20])
    result = search(toys.SPACE, toys.loss, OBJECTIVES, trials=4, storage=file)
    assert [t["state"] for t in result.trials] == ["complete"] * 4


def test_a_path_or_a_url_names_the_same_file(tmp_path):
    search(toys.SPACE, toys.loss, OBJECTIVES, trials=2, storage=tmp_path / "deep" / "study.db")
    result = load_study("search", f"sqlite:///{tmp_path}/deep/study.db")
    assert len(result.trials) == 2


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("study.db", True),
        ("sqlite:///study.db", True),
        ("study.journal", False),
        ("postgresql://host/db", False),
    ],
)
def test_a_sqlite_file_is_for_one_machine(where, expected):
    assert is_on_this_machine(where) is expected


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ConfigError, match=r"'mysql://' is not known. Allowed: a path"):
        open_store("mysql://host/db")


def test_a_folder_is_not_a_storage(tmp_path):
    with pytest.raises(ConfigError, match=r"a folder\. Allowed: a file"):
        open_store(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_study_is_refused(tmp_path, name):
    (tmp_path / name).write_text("hello\nthis is text\n" * 40)
    with pytest.raises(SearchError, match="not a study file"):
        open_store(tmp_path / name)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SearchError, match=r"study\.db': "):
        open_store(tmp_path / "file" / "study.db")


def test_a_server_that_is_not_there_is_named_without_its_password():
    pytest.importorskip("psycopg", reason="needs masegraph[cluster]")
    url = "postgresql://mase:secret@127.0.0.1:1/db"
    with pytest.raises(SearchError, match="does not answer or refuses") as caught:
        open_store(url)
    assert "127.0.0.1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_server_without_its_driver_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'masegraph\[cluster\]'"):
        open_store("postgresql://host/db")


def test_an_unknown_study_is_answered_with_those_that_are_there(tmp_path):
    search(toys.SPACE, toys.loss, OBJECTIVES, trials=1, name="mine", storage=tmp_path / "s.db")
    with pytest.raises(SearchError, match=r"it has no study 'mime'\. Did you mean 'mine'"):
        load_study("mime", tmp_path / "s.db")


@pytest.mark.slow
def test_the_dashboard_shows_the_study(tmp_path):
    dashboard = pytest.importorskip(
        "optuna_dashboard", reason="needs the extra 'dashboard': pip install 'masegraph[dashboard]'"
    )
    both = {"loss": "minimize", "bits": "minimize"}
    search(
        toys.SPACE,
        lambda p, t: {"loss": p["x"], "bits": p["y"]},
        both,
        trials=3,
        name="shown",
        storage=tmp_path / "study.db",
    )
    app = dashboard.wsgi(f"sqlite:///{tmp_path}/study.db")
    status = []
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/api/studies",
        "SERVER_NAME": "x",
        "SERVER_PORT": "80",
        "wsgi.url_scheme": "http",
    }
    body = b"".join(app(environ, lambda code, headers, *rest: status.append(code)))
    (study,) = json.loads(body)["study_summaries"]
    assert status == ["200 OK"]
    assert (study["study_name"], study["directions"]) == ("shown", ["minimize", "minimize"])


def test_a_damaged_study_file_is_an_error_that_names_it(tmp_path):
    file = tmp_path / "study.db"
    optuna.create_study(storage=open_store(file).storage, study_name="s")
    with sqlite3.connect(file) as opened:
        opened.execute("UPDATE study_directions SET direction = 'SIDEWAYS'")
    with pytest.raises(SearchError, match=r"storage '.*study.db': damaged: "):
        open_store(file)
