"""What is done is not done again, unless something before it changed."""

import json

import pytest

from chop.cli.console import Console
from chop.cli.stages import STAMP, DemoStage, run_stages


def stages(ran, one=1, two=2):
    def first(folder, results):
        ran.append("one")
        (folder / "file.txt").write_text("kept")
        return {"value": one, "summary": f"one is {one}"}

    def second(folder, results):
        ran.append("two")
        return {"value": results["one"]["value"] + two, "summary": "added"}

    return [
        DemoStage("one", "first", first, {"one": one}),
        DemoStage("two", "second", second, {"two": two}),
    ]


@pytest.fixture
def run(tmp_path, capsys):
    def go(fresh=False, **options):
        ran = []
        results = run_stages(stages(ran, **options), tmp_path, Console(), fresh=fresh)
        return ran, results, capsys.readouterr().out

    return go


def test_a_stage_that_was_killed_while_its_files_moved_is_whole(run, tmp_path):
    run()
    scratch = tmp_path / "one" / ".staged.1"
    scratch.mkdir()
    (scratch / ".complete").touch()
    (tmp_path / "one" / "file.txt").rename(scratch / "file.txt")
    assert run()[0] == []
    assert (tmp_path / "one" / "file.txt").read_text() == "kept"


def test_stages_run_in_order_and_leave_files_and_stamps(run, tmp_path):
    ran, results, out = run()
    assert ran == ["one", "two"] and results["two"]["value"] == 3
    assert (tmp_path / "one" / "file.txt").read_text() == "kept"
    assert json.loads((tmp_path / "two" / STAMP).read_text())["record"]["value"] == 3
    assert "1/2 first: one is 1" in out


def test_a_second_run_does_nothing_and_says_so(run):
    _, first, _ = run()
    ran, again, out = run()
    assert ran == [] and again == first
    assert "1/2 first: done before (one is 1)" in out


@pytest.mark.parametrize(
    ("options", "expected"), [({"two": 5}, ["two"]), ({"one": 5}, ["one", "two"])]
)
def test_a_changed_option_redoes_its_stage_and_what_follows(run, options, expected):
    run()
    ran, results, _ = run(**options)
    assert ran == expected
    assert results["two"]["value"] == options.get("one", 1) + options.get("two", 2)


def test_fresh_redoes_everything(run):
    run()
    assert run(fresh=True)[0] == ["one", "two"]


def test_an_interrupted_stage_leaves_no_stamp(tmp_path):
    def stop(folder, results):
        (folder / "half.txt").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_stages([DemoStage("one", "first", stop, {})], tmp_path, Console(is_quiet=True))
    assert list((tmp_path / "one").iterdir()) == []
