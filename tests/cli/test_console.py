"""Progress is a bar on a terminal and lines elsewhere."""

import io

import numpy as np

from chop.cli import console as module
from chop.cli.console import Console


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
