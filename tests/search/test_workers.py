"""Several workers on one study: nothing twice, nothing lost, and any of them may die."""

import collections
import signal
import sys
import threading
import time

import pytest
import toys

from chop.errors import ConfigError, MissingDependencyError, RegistryError, SearchError
from chop.search import load_study, search
from chop.search.workers import check_reach, check_room, pack, unpack

LOSS = {"loss": "minimize"}


def run(tmp_path, evaluate, **options):
    given = {"trials": 10, "sampler": "random", "storage": tmp_path / "study.db", "workers": 2}
    return search(toys.SPACE, evaluate, LOSS, **{**given, **options})


def counted(result):
    return [t for t in result.trials if "copied_from" not in t["attributes"]]


@pytest.mark.slow  # the test of the killed worker has two as well
def test_two_workers_share_the_trials_of_a_function_that_is_named(tmp_path):
    result = run(tmp_path, "toys:together")
    assert [t["state"] for t in counted(result)] == ["complete"] * 10
    lines = toys.evaluated(tmp_path / "search")
    assert len({str(line["point"]) for line in lines}) == len(lines) == 10
    assert len({line["process"] for line in lines}) == 2
    assert result.stopped is None


def test_the_trial_of_a_killed_worker_is_done_by_the_other(tmp_path):
    result = run(tmp_path, toys.dies_once)
    assert [t["state"] for t in counted(result)] == ["complete"] * 10
    number = int((tmp_path / "search" / "killed").read_text())
    lines = toys.evaluated(tmp_path / "search")
    assert collections.Counter(line["number"] for line in lines)[number] == 1
    assert len({line["process"] for line in lines}) == 1


@pytest.mark.slow
def test_workers_that_all_die_leave_a_search_that_can_go_on(tmp_path):
    result = run(tmp_path, toys.dies_always, trials=4)
    assert result.stopped.startswith("all 2 workers died (exit codes -9, -9); start again")
    result = run(tmp_path, toys.loss, trials=4, workers=1)
    assert [t["state"] for t in counted(result)] == ["complete"] * 4


@pytest.mark.slow
def test_a_function_of_the_script_itself_is_sent_by_value(tmp_path):
    shift = 2

    def local(point, trial):
        return {"loss": point["x"] + shift}

    result = run(tmp_path, local, trials=3, storage=tmp_path / "study.journal")
    assert all(t["values"]["loss"] == t["params"]["x"] + shift for t in result.trials)


def test_what_cannot_be_sent_is_refused_with_the_remedy(tmp_path):
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to a worker \(TypeError.*'module:func"):
        run(tmp_path, lambda point, trial: {"loss": bool(lock)})


@pytest.mark.slow
def test_a_worker_that_cannot_start_says_why(tmp_path):
    with pytest.raises(SearchError, match=r"worker 0 could not work: ConfigError: .*toys:lost"):
        run(tmp_path, "toys:lost")


def test_an_unknown_engine_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(RegistryError, match=r"Unknown engine 'rey'\. Did you mean 'ray'\?"):
        run(tmp_path, toys.loss, engine="rey")


def test_a_plan_comes_out_of_its_package_as_it_went_in(tmp_path):
    from test_storage import plan

    given = plan(tmp_path / "study.db", tmp_path)
    taken = unpack(pack(given))
    assert (taken.name, taken.trials, taken.run) == (given.name, given.trials, given.run)
    assert taken.space.dimensions == given.space.dimensions


def wait_for_sleepers(process, folder, number):
    """Until `number` trials sleep, or the search has ended."""
    while len(list(folder.glob("asleep-*"))) < number:
        assert process.poll() is None, "the search ended"
        time.sleep(0.05)


@pytest.mark.slow
def test_an_interrupt_gives_the_trials_of_all_workers_back(start, tmp_path):
    arguments = "evaluate=toys.sleeps, objectives={'loss': 'minimize'}, trials=4, storage='s.db'"
    process = start(arguments, workers=2)
    wait_for_sleepers(process, tmp_path / "search", 2)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    assert load_study("search", tmp_path / "s.db").trials == [], "both are in line again"


@pytest.mark.slow
def test_workers_end_with_the_search_that_started_them(start, tmp_path):
    arguments = "evaluate=toys.sleeps, objectives={'loss': 'minimize'}, trials=2, storage='s.db'"
    process = start(arguments, workers=2)
    wait_for_sleepers(process, tmp_path / "search", 2)
    process.kill()
    process.wait()
    result = search(
        toys.SPACE, toys.loss, LOSS, trials=2, storage=tmp_path / "s.db", directory=tmp_path / "d"
    )
    assert [t["state"] for t in counted(result)] == ["complete"] * 2


def test_the_engine_ray_without_ray_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'masegraph\[cluster\]', or use"):
        run(tmp_path, toys.loss, engine="ray")


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of this machine, started as a search starts it."""
    pytest.importorskip("ray", reason="needs the extra 'cluster': pip install 'masegraph[cluster]'")
    from chop.search.workers import _ray_cluster

    with _ray_cluster(2) as ray:
        yield ray


@pytest.mark.slow
def test_ray_actors_share_the_trials(cluster, tmp_path):
    result = run(tmp_path, toys.together, engine="ray")
    assert [t["state"] for t in counted(result)] == ["complete"] * 10
    lines = toys.evaluated(tmp_path / "search")
    assert len({str(line["point"]) for line in lines}) == len(lines) == 10
    assert len({line["process"] for line in lines}) == 2


@pytest.mark.slow
def test_the_trial_of_a_killed_ray_actor_is_done_by_the_other(cluster, tmp_path):
    result = run(tmp_path, toys.dies_once, engine="ray")
    assert [t["state"] for t in counted(result)] == ["complete"] * 10
    assert result.stopped is None


@pytest.mark.slow
def test_ray_actors_that_all_die_leave_a_search_that_can_go_on(cluster, tmp_path):
    result = run(tmp_path, toys.dies_always, engine="ray", trials=3)
    assert result.stopped == "all Ray workers died; start again to go on"


@pytest.mark.slow
def test_a_ray_actor_that_cannot_start_says_why(cluster, tmp_path):
    with pytest.raises(SearchError, match=r"a Ray worker could not work: .*toys:lost"):
        run(tmp_path, "toys:lost", engine="ray")


@pytest.mark.slow
def test_trials_with_several_devices_get_a_placement_group_each(cluster, tmp_path):
    result = run(tmp_path, toys.reserved, engine="ray", trials=4, devices=2)
    assert result.stopped is None
    trials = counted(result)
    assert [t["state"] for t in trials] == ["complete"] * 4
    assert {t["attributes"]["devices"] for t in trials} == {2}
    assert [t["attributes"]["bundles"] for t in trials] == [[{"CPU": 2.0}]] * 4
    from ray.util.placement_group import placement_group_table

    states = {group["state"] for group in placement_group_table().values()}
    assert states == {"REMOVED"}, "their devices are free again"


def test_a_trial_with_more_devices_than_any_machine_is_refused():
    machines = [{"CPU": 8.0}, {"CPU": 16.0, "GPU": 4.0}]
    check_room(4, machines)
    with pytest.raises(ConfigError, match=r"no machine of the Ray cluster has more than 4 GPUs"):
        check_room(5, machines)
    with pytest.raises(ConfigError, match=r"devices is 9, .* more than 8 CPUs\. Allowed: .* 8"):
        check_room(9, machines[:1])


def test_a_search_without_devices_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"search: devices is 0\. Allowed: 1 or more"):
        run(tmp_path, toys.loss, devices=0)


def test_a_file_of_this_machine_does_not_serve_a_cluster_of_several():
    check_reach("study.db", 1)
    check_reach("study.journal", 2)
    with pytest.raises(ConfigError, match=r"is a file of this machine and the cluster has 2"):
        check_reach("study.db", 2)
