"""A folder is complete, or as it was before."""

import pytest

from chop.cli.failures import UsageError
from chop.cli.output import staged
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
