"""How far a search is, and showing it: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from tqdm import tqdm

from chop.actions.trials import COPIED_FROM, TrialRecord, best_trial, pareto_front

SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class Progress:
    """A search at one moment."""

    name: str
    total: int
    objectives: Mapping[str, str]
    trials: Sequence[TrialRecord]

    @property
    def finished(self) -> int:
        """Evaluations that are done: complete, failed or pruned; copies do not count."""
        ended = [t for t in self.trials if t["state"] != "running"]
        return sum(COPIED_FROM not in t["attributes"] for t in ended)

    @property
    def failed(self) -> int:
        """How many of them failed."""
        failed = [t for t in self.trials if t["state"] == "failed"]
        return sum(COPIED_FROM not in t["attributes"] for t in failed)

    @property
    def best(self) -> TrialRecord | None:
        """The best trial by the first objective."""
        return best_trial(self.trials, self.objectives)

    def describe(self) -> str:
        """The best so far in a few words: `best accuracy 0.874 (trial 12)`."""
        best = self.best
        if best is None:
            return "no result yet"
        values = " ".join(f"{name} {best['values'][name]:.4g}" for name in self.objectives)
        text = f"best {values} (trial {best['number']})"
        if len(self.objectives) > 1:
            text += f", {len(pareto_front(self.trials, self.objectives))} on the front"
        return text + (f", {self.failed} failed" if self.failed else "")


class ProgressBar:
    """Shows a search's progress; give it as `on_progress`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._bar: Any = None
        self._last = float("-inf")

    def __call__(self, progress: Progress) -> None:
        """Show where the search is now."""
        if self._stream.isatty():
            self._draw(progress)
        else:
            self._write(progress)

    def _draw(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=progress.total, file=self._stream, desc=progress.name, unit="trial"
            )
        self._bar.n = progress.finished
        self._bar.set_postfix_str(progress.describe())
        if progress.finished >= progress.total:
            self._bar.close()

    def _write(self, progress: Progress) -> None:
        is_last = progress.finished >= progress.total
        if is_last or time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            done = f"{progress.finished}/{progress.total}"
            self._stream.write(f"{progress.name}: {done} trials, {progress.describe()}\n")
            self._stream.flush()
