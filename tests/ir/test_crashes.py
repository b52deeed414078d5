"""A checkpoint is the old one or the new one, wherever the process that writes it dies."""

import multiprocessing

import pytest
import torch
from dying import Dying, Killed, command, die_everywhere, export, graph, held

from chop.cli.output import staged
from chop.ir.store.tensors import write_pair


@pytest.mark.parametrize("before", [None, 1.0])
@pytest.mark.parametrize("write", [export, command])
def test_a_death_at_any_file_operation_leaves_old_or_new(tmp_path, write, before):
    deaths = die_everywhere(tmp_path / "out", write, before)
    found = [death.held for death in deaths]
    assert not any(death.left for death in deaths), "leftovers are cleaned at the next write"
    assert set(found) <= {before, 2.0}
    assert found[0] == before
    assert found[-1] == 2.0
    assert found == sorted(found, key=lambda v: v == 2.0), "one step from the old to the new"
    assert len(found) > 5


def test_a_command_that_died_while_moving_its_files_is_finished_by_the_next(monkeypatch, tmp_path):
    folder = tmp_path / "out"
    command(folder, 1.0)
    with monkeypatch.context() as patch:
        seen = []
        for last in range(1, 40):
            dying = Dying(patch, last)
            try:
                command(folder, 2.0)
            except Killed:
                seen.append(dying.count)
            patch.undo()
            with staged(folder):
                pass
            told = (folder / "result.json").read_text(), (folder / "report/page.html").read_text()
            assert told in (("1.0", "1.0"), ("2.0", "2.0"))
            assert held(folder / "model") == float(told[0])
            if told[0] == "2.0":
                break
    assert seen


def _write_many(folder, value):
    made = graph(value)
    for _ in range(5):
        made.export(folder / "model")


def test_processes_that_write_one_folder_take_turns(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(tmp_path, float(v))) for v in (1, 2)]
    export(tmp_path, 0.0)
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert held(tmp_path / "model") in (0.0, 1.0, 2.0)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert {p.name for p in tmp_path.iterdir()} == {"model.json", "model.safetensors"}


def test_an_error_while_writing_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setattr("chop.ir.store.tensors.bring_to_disk", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_pair(tmp_path / "model", "{}", {"x": torch.ones(1)}, "0" * 32)
    assert list(tmp_path.iterdir()) == []
