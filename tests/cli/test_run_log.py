"""A log of each run, also of one that fails."""

import logging

from chop.cli.console import Console
from chop.cli.run_log import run_log


def logs(folder):
    return sorted((folder / "logs").glob("*.log"))


def test_a_run_leaves_a_log_of_what_was_asked_and_said(mase, tmp_path):
    said = mase("trace mlp --no-draw --out t").out
    (log,) = logs(tmp_path / "t")
    text = log.read_text()
    assert text.startswith("mase trace mlp --no-draw --out t\nPython ")
    assert "[trace]\n" in text and 'model = "mlp"' in text and "trace mlp …" in text
    assert said.splitlines()[0] in text
    assert text.splitlines()[-1].startswith("done in ")
    assert mase("trace mlp --no-draw --out t --quiet --json").code == 0
    assert len(logs(tmp_path / "t")) == 2, "one for each run"


def test_a_run_that_fails_leaves_the_traceback(mase, tmp_path):
    assert mase("emit mlp --out e").code == 1
    text = logs(tmp_path / "e")[0].read_text()
    assert "Traceback (most recent call last)" in text and "ended by " in text


def test_what_the_library_warns_of_is_in_the_log(tmp_path):
    before = list(logging.getLogger("chop").handlers)
    with run_log(tmp_path, ["trace"], "", Console(is_quiet=True)):
        logging.getLogger("chop.some.part").warning("mind the gap")
    assert "WARNING chop.some.part: mind the gap" in logs(tmp_path)[0].read_text()
    assert logging.getLogger("chop").handlers == before


def test_a_folder_that_takes_no_log_does_not_stop_the_run(tmp_path, capsys):
    (tmp_path / "logs").write_text("a file")
    with run_log(tmp_path, ["trace"], "", Console()) as console:
        console.say("goes on")
    assert "no log is written" in capsys.readouterr().err
