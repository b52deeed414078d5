"""Progress and budgets of long runs. A figure comes from `measuring.checked`, never from here.

`tests/bench/test_checked.py` lists the programs that may import this module, and why.
"""

from __future__ import annotations

import time


class Stopwatch:
    """Wall time since the object was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start


class Deadline:
    """End of a budget of wall time in seconds."""

    def __init__(self, seconds: float) -> None:
        self._watch, self._budget = Stopwatch(), seconds

    @property
    def left(self) -> float:
        """Seconds that are left; negative afterwards."""
        return self._budget - self._watch.seconds

    @property
    def is_over(self) -> bool:
        """True after the end."""
        return self.left <= 0
