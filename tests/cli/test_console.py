"""Progress is a bar on a terminal and lines elsewhere."""

import io

import numpy as np
import pytest

from chop.cli import console as module
from chop.cli.console import Console
from chop.cli.main import main
from chop.models import get_model


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(stream, **options):
    console = Console(err=stream, out=io.StringIO(), **options)
    with console.progress("work", 4) as progress:
        progress.to(2, "half")
    return stream.getvalue()


def test_lines_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
    told = run(io.StringIO())
    assert told.splitlines()[:2] == ["work …", "work: 2 of 4, half"]
    assert "\r" not in told and "done in" in told


def test_a_bar_on_a_terminal():
    told = run(Terminal())
    assert "\r" in told and "work" in told


def test_quiet_says_nothing():
    assert run(io.StringIO(), is_quiet=True) == ""
    assert run(Terminal(), is_quiet=True) == ""


def test_a_failure_is_not_done():
    stream = io.StringIO()
    try:
        with Console(err=stream).progress("work"):
            raise RuntimeError
    except RuntimeError:
        pass
    assert "done" not in stream.getvalue()


def test_the_document_takes_arrays_sets_and_paths(tmp_path):
    out = io.StringIO()
    Console(out=out).document({"a": np.arange(2), "b": np.float32(1.5), "c": tmp_path, "d": {1}})
    assert '"b": 1.5' in out.getvalue() and str(tmp_path) in out.getvalue()


@pytest.mark.slow
def test_no_command_draws_bars_or_colours_off_a_terminal(tmp_path, trained, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    get_model("tiny_bert").save_pretrained(tmp_path / "bert")
    rows = "--dataset digits --train-rows 64 --test-rows 32"
    capfd.readouterr()
    for line in (
        f"train mlp {rows}",
        "trace bert --no-draw",
        f"search {trained} {rows} --formats integer --trials 2",
        f"sweep sparsity {trained} {rows} --values 0.5 --epochs 0.1",
        f"bench {trained} --iterations 2",
    ):
        assert main([*line.split()]) == 0, line
        for said in capfd.readouterr():
            assert "\r" not in said and "\x1b" not in said, line
