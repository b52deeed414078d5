"""Progress of the long stages of a command: a bar with the time left, or lines now and then."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from chop.cli.console import Console, ProgressDisplay, silence_s
from chop.log import listening_to_steps

PATIENCE_S = 3.0
"""Seconds after which a stage is shown; shorter stages print nothing."""
SILENCE_S = 30.0
"""Longest time in seconds without a line if there is no terminal."""


@dataclass
class StepProgress:
    """Listener to the steps of passes and evaluations; shows the stage that runs."""

    console: Console
    stage: str = ""
    started: float = field(default_factory=time.monotonic)
    display: ProgressDisplay | None = None

    def __call__(self, stage: str, number: int, total: int) -> None:
        """Show that step `number` of `total` begins."""
        now = time.monotonic()
        if stage != self.stage or number == 1:
            self.close()
            self.stage, self.started = stage, now
        if self.display is None and now - self.started >= PATIENCE_S:
            self.display = self.console.progress(stage, total)
            self.display.started = self.started
        if self.display is not None:
            self.display.to(number - 1, time_left(now - self.started, number - 1, total))
            if number == total:
                self.stage = ""

    def close(self) -> None:
        """End the display of the current stage."""
        if self.display is not None:
            self.display.__exit__(None, None, None)
        self.display, self.stage = None, ""


def time_left(elapsed: float, done: int, total: int) -> str:
    """Return the estimated time left as text, empty if nothing is done yet.

    >>> time_left(30.0, 1, 3)
    'about 60 s left'
    """
    if done < 1:
        return ""
    return f"about {elapsed / done * (total - done):.0f} s left"


@contextlib.contextmanager
def step_progress(console: Console) -> Iterator[None]:
    """Show the stages of long work inside the context, and a line after long silence."""
    if console.is_quiet:
        yield
        return
    progress, ended = StepProgress(console), threading.Event()
    beat = threading.Thread(target=_break_silence, args=(console, progress, ended), daemon=True)
    beat.start()
    try:
        with listening_to_steps(progress):
            yield
    finally:
        ended.set()
        beat.join()
        progress.close()


def _break_silence(console: Console, progress: StepProgress, ended: threading.Event) -> None:
    """Print a line after every `SILENCE_S` seconds of silence unless a bar is shown."""
    start = time.monotonic()
    while not ended.wait(SILENCE_S):
        if not console.err.isatty() and silence_s() >= SILENCE_S:
            stage = progress.stage or "still working"
            console.note(f"{stage} ({time.monotonic() - start:.0f} s so far)")
