"""Gates of speculative decoding: drafts are used only while they save time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

PAYS = 2
"""Accepted tokens for which a step on a draft takes less time than a step for each token."""
RECENT = 4
"""Drafts by whose mean a `PauseGate` decides."""
FIRST_PAUSE = 16
"""Tokens without drafts after the first failure of a `PauseGate`."""


def pays(draft: Sequence[int], accepted: int) -> bool:
    """Return True if the step on a draft saved time, by its accepted tokens.

    >>> pays([5, 6, 7], 1), pays([5, 6, 7], 2), pays([5], 1)
    (False, True, True)
    """
    return accepted >= min(PAYS, len(draft))


class DraftGate(Protocol):
    """Decision whether the next step takes a draft."""

    def admits(self, tokens: Sequence[int], draft: Sequence[int]) -> bool:
        """Return True if the step after `tokens` is to take `draft`."""

    def is_waiting(self, tokens: Sequence[int]) -> bool:
        """Return True if no draft is needed after `tokens`."""

    def learn(self, draft: Sequence[int], accepted: int) -> None:
        """Take note of a draft that was used."""


class TrialGate:
    """DraftGate for drafts that cost nothing: it opens when one would have been right.

    While it is closed, drafts are compared with the tokens that plain steps generate. It closes
    after a draft that did not pay.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._trial: tuple[int, list[int]] | None = None  # tokens before a draft, and the draft

    def is_waiting(self, tokens: Sequence[int]) -> bool:
        """Return False: a trial needs a draft."""
        return False

    def admits(self, tokens: Sequence[int], draft: Sequence[int]) -> bool:
        """Judge the draft on trial by `tokens`, and put `draft` on trial if there is none."""
        if self._trial is not None and not self._is_open:
            start, tried = self._trial
            after = list(tokens[start:])[: len(tried)]
            right = next((i for i, t in enumerate(after) if t != tried[i]), len(after))
            self._is_open = right >= PAYS
            if self._is_open or right < len(after) or len(after) == len(tried):
                self._trial = None
        if self._trial is None and draft and not self._is_open:
            self._trial = (len(tokens), list(draft))
        return self._is_open

    def learn(self, draft: Sequence[int], accepted: int) -> None:
        """Close after a draft that did not pay."""
        if draft:
            self._is_open = pays(draft, accepted)


class PauseGate:
    """DraftGate for drafts that cost time: it closes for a while if recent ones did not pay."""

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._pause, self._until = FIRST_PAUSE, 0
        self._length = 0

    def is_waiting(self, tokens: Sequence[int]) -> bool:
        """Return True during a pause."""
        self._length = len(tokens)
        return self._length < self._until

    def admits(self, tokens: Sequence[int], draft: Sequence[int]) -> bool:
        """Return True: no draft is made during a pause."""
        return True

    def learn(self, draft: Sequence[int], accepted: int) -> None:
        """Begin a pause, twice as long as the last, if most of the recent drafts did not pay."""
        if not draft:
            return
        self._recent.append(pays(draft, accepted))
        if len(self._recent) == RECENT and sum(self._recent) * 2 < RECENT:
            self._recent.clear()
            self._until, self._pause = self._length + self._pause, self._pause * 2
