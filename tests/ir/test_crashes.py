"""A checkpoint is the old one or the new one, wherever the process that writes it dies."""

import functools
import multiprocessing
import shutil

import pytest
import torch
from dying import Dying, Killed
from torch import nn

from chop import MaseGraph
from chop.cli.output import staged
from chop.ir.store.tensors import write_pair


@functools.cache
def graph(value):
    made = MaseGraph(nn.Linear(2, 2), dummy_in=torch.ones(1, 2))
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.fill_(value)
    return made


def held(path):
    """The value of the checkpoint at `path`; None where there is none."""
    if not path.with_suffix(".json").exists():
        return None
    values = {
        float(v)
        for p in MaseGraph.from_checkpoint(path).model.parameters()
        for v in p.detach().view(-1)
    }
    assert len(values) == 1, "parts of two checkpoints"
    return values.pop()


def export(folder, value):
    graph(value).export(folder / "model")


def command(folder, value):
    with staged(folder) as scratch:
        graph(value).export(scratch / "model")
        (scratch / "report").mkdir()
        (scratch / "report" / "page.html").write_text(str(value))
        (scratch / "result.json").write_text(str(value))


def die_everywhere(monkeypatch, folder, write, before):
    """Every point at which `write` can die, with what is there afterwards."""
    found = []
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if before is not None:
            write(folder, before)
        with monkeypatch.context() as patch:
            dying = Dying(patch, last=len(found) + 1)
            try:
                write(folder, 2.0)
            except Killed:
                pass
            else:
                return found
            assert dying.count > len(found)
        found.append(held(folder / "model"))
        write(folder, 3.0)
        assert held(folder / "model") == 3.0
        left = {p.name for p in folder.iterdir()} - {"model.json", "model.safetensors"}
        assert not left - {"report", "result.json"}, "leftovers are cleaned at the next write"


@pytest.mark.parametrize("before", [None, 1.0])
@pytest.mark.parametrize("write", [export, command])
def test_a_death_at_any_file_operation_leaves_old_or_new(monkeypatch, tmp_path, write, before):
    found = die_everywhere(monkeypatch, tmp_path / "out", write, before)
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
