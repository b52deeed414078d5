"""A folder is complete, or as it was before."""

import pytest

from chop.cli.failures import UsageError
from chop.cli.output import COMPLETE, settle, staged
from chop.files import write_whole


def test_results_appear_when_the_block_ends(tmp_path):
    with staged(tmp_path / "out") as folder:
        (folder / "a.txt").write_text("new")
        assert not (tmp_path / "out" / "a.txt").exists()
    assert (tmp_path / "out" / "a.txt").read_text() == "new"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.txt"]


def test_an_error_leaves_what_was_there(tmp_path):
    write_whole(tmp_path / "out" / "a.txt", "old")
    with pytest.raises(RuntimeError), staged(tmp_path / "out") as folder:
        (folder / "a.txt").write_text("new")
        raise RuntimeError
    assert (tmp_path / "out" / "a.txt").read_text() == "old"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.txt"]


def test_a_folder_of_an_earlier_run_is_replaced_whole(tmp_path):
    write_whole(tmp_path / "out" / "rtl" / "old.sv", "")
    write_whole(tmp_path / "out" / "kept.txt", "")
    with staged(tmp_path / "out") as folder:
        write_whole(folder / "rtl" / "new.sv", "")
    assert [path.name for path in (tmp_path / "out" / "rtl").iterdir()] == ["new.sv"]
    assert (tmp_path / "out" / "kept.txt").exists()


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    with (
        staged(tmp_path / "out"),
        pytest.raises(UsageError, match="out: another mase is writing its results there"),
        staged(tmp_path / "out"),
    ):
        pass
    with staged(tmp_path / "out"):
        pass


def test_what_a_killed_process_left_is_cleaned(tmp_path):
    write_whole(tmp_path / "out" / ".staged.1" / "a.txt", "half")
    with staged(tmp_path / "out"):
        pass
    assert list((tmp_path / "out").iterdir()) == []


def half_moved(folder):
    """A command that was killed when it had moved one of two files."""
    write_whole(folder / "one.txt", "new")
    write_whole(folder / "two.txt", "old")
    write_whole(folder / ".staged.1" / "two.txt", "new")
    write_whole(folder / ".staged.1" / COMPLETE, "")
    return folder


def test_a_reader_finds_what_a_killed_command_had_begun_to_move(tmp_path):
    folder = half_moved(tmp_path / "out")
    settle(folder)
    assert (folder / "two.txt").read_text() == "new"
    assert {path.name for path in folder.iterdir()} == {"one.txt", "two.txt"}


def test_a_reader_leaves_a_command_at_work_alone(tmp_path):
    with staged(tmp_path / "out") as scratch:
        write_whole(scratch / "a.txt", "")
        write_whole(scratch / COMPLETE, "")
        settle(tmp_path / "out")
        assert not (tmp_path / "out" / "a.txt").exists()


def test_a_link_is_nothing_that_a_command_left(tmp_path):
    write_whole(tmp_path / "elsewhere" / "a.txt", "mine")
    write_whole(tmp_path / "elsewhere" / COMPLETE, "")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".staged.1").symlink_to(tmp_path / "elsewhere")
    settle(tmp_path / "out")
    assert (tmp_path / "elsewhere" / "a.txt").exists()


def test_what_results_make_obsolete_goes_after_them_and_not_before(tmp_path, monkeypatch):
    write_whole(tmp_path / "out" / "checkpoints" / "step", "")
    obsolete = [tmp_path / "out" / "checkpoints"]
    with monkeypatch.context() as patch, pytest.raises(OSError), staged(tmp_path / "out", obsolete):
        patch.setattr("chop.cli.output.publish", lambda *_: (_ for _ in ()).throw(OSError()))
    assert obsolete[0].is_dir()
    with staged(tmp_path / "out", obsolete):
        pass
    assert not obsolete[0].exists()
