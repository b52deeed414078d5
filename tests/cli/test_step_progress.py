"""Progress of long stages, and evaluations that end soon."""

from __future__ import annotations

import io
import time

import pytest

from chop.cli import step_progress as module
from chop.cli import train_and_measure
from chop.cli.console import Console
from chop.cli.step_progress import StepProgress, step_progress, time_left
from chop.log import get_logger, log_step

LOGGER = get_logger("chop.test")


def console() -> Console:
    return Console(out=io.StringIO(), err=io.StringIO())


def test_short_stages_print_nothing() -> None:
    shown = console()
    with step_progress(shown):
        for number in (1, 2, 3):
            log_step(LOGGER, "gptq: layer", number, 3)
    assert shown.err.getvalue() == ""


def test_a_long_stage_shows_its_steps_and_the_time_left(monkeypatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setattr("chop.cli.console.SECONDS_BETWEEN_LINES", 0.0)
    shown = console()
    with step_progress(shown):
        for number in (1, 2, 3):
            log_step(LOGGER, "gptq: layer", number, 3)
        log_step(LOGGER, "evaluate: batch", 1, 1)
    lines = shown.err.getvalue()
    assert "gptq: layer: 1 of 3, about 0 s left" in lines
    assert "gptq: layer: done in" in lines and "evaluate: batch …" in lines


def test_long_silence_is_broken_without_a_terminal(monkeypatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.01)
    shown = console()
    with step_progress(shown):
        time.sleep(0.1)
    assert "still working (0 s so far)" in shown.err.getvalue()


def test_a_quiet_console_prints_no_steps(monkeypatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    shown = Console(is_quiet=True, out=io.StringIO(), err=io.StringIO())
    with step_progress(shown):
        log_step(LOGGER, "gptq: layer", 1, 2)
    assert shown.err.getvalue() == ""


def test_time_left_follows_from_the_steps_done() -> None:
    assert time_left(10.0, 0, 4) == ""
    assert time_left(10.0, 2, 4) == "about 10 s left"
    progress = StepProgress(console())
    progress("a", 1, 2)
    progress.close()
    assert progress.stage == ""


@pytest.mark.parametrize("command", ["quantize --format mxint8 --evaluate", "eval"])
def test_a_default_evaluation_takes_a_share_of_many_rows(
    mase, trained, monkeypatch, command
) -> None:
    verb, _, more = command.partition(" ")
    line = f"{verb} {trained} {more} --dataset digits --eval-batch-size 16 --out o"
    whole = mase(f"{line} --json").document["rows"]
    monkeypatch.setattr(train_and_measure, "EVALUATION_FLOPS", 1.0)
    ran = mase(f"{line} --json")
    assert ran.document["rows"] == 32 < whole
    assert f"evaluates 32 of {whole} test rows; --all-rows takes all" in ran.err
    assert mase(f"{line} --json --all-rows").document["rows"] == whole
    assert mase(f"{line} --json --test-rows 40").document["rows"] == 40
