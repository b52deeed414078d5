"""Progress of a search, shown as a bar on a terminal and as lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from tqdm import tqdm

from chop.actions.trials import TrialRecord, best_trial, evaluated, failures, pareto_front

SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class Progress:
    """State of a search at one moment."""

    name: str
    total: int
    objectives: Mapping[str, str]
    trials: Sequence[TrialRecord]

    @property
    def finished(self) -> int:
        """Finished evaluations: complete, failed or pruned, without copies."""
        return sum(t["state"] != "running" for t in evaluated(self.trials))

    @property
    def failed(self) -> int:
        """Failed evaluations, without copies."""
        return len(failures(self.trials))

    @property
    def best(self) -> TrialRecord | None:
        """Best trial by the first objective."""
        return best_trial(self.trials, self.objectives)

    def describe(self) -> str:
        """Return the best trial so far as text: `best accuracy 0.874 (trial 12)`."""
        best = self.best
        if best is None:
            return "no result yet"
        values = " ".join(f"{name} {best['values'][name]:.4g}" for name in self.objectives)
        text = f"best {values} (trial {best['number']})"
        if len(self.objectives) > 1:
            text += f", {len(pareto_front(self.trials, self.objectives))} on the front"
        return text + (f", {self.failed} failed" if self.failed else "")


class ProgressBar:
    """Display of a search's progress, to pass as `on_progress`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._bar: Any = None
        self._last = float("-inf")

    def __call__(self, progress: Progress) -> None:
        """Show the progress."""
        finished, total = progress.finished, progress.total
        if self._stream.isatty():
            if self._bar is None:
                self._bar = tqdm(total=total, file=self._stream, desc=progress.name, unit="trial")
            self._bar.n = finished
            self._bar.set_postfix_str(progress.describe())
            if finished >= total:
                self._bar.close()
        elif finished >= total or time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            text = f"{finished}/{total} trials, {progress.describe()}"
            self._stream.write(f"{progress.name}: {text}\n")
            self._stream.flush()
