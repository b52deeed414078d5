"""Jobs of the engine: a prompt to answer, and the receiver of its tokens."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

from chop.serve.request_errors import RequestError
from chop.serve.sampling import Sampler, Sampling, Token

STOP, LENGTH, CANCELLED = "stop", "length", "cancelled"
"""Reasons why an answer ends: by itself or a stop word; at its limit; by the client."""


class Listener(Protocol):
    """Receiver of one answer; the engine's thread calls it."""

    def on_token(self, token: Token) -> bool:
        """Receive a token; return True if the answer ends with it, by a stop word."""

    def on_end(self, reason: str, error: RequestError | None = None) -> None:
        """Receive the end, and the error if it is one."""


@dataclass(eq=False)
class Job:
    """One prompt in the engine.

    `submitted`, `first_token`: seconds of the monotonic clock. `sampler` exists while it runs.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    listener: Listener
    submitted: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    is_cancelled: bool = False
    sampler: Sampler | None = None


class TokenList:
    """Listener that stores the tokens of an answer."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.reason = ""
        self.error: RequestError | None = None
        self.is_done = threading.Event()

    def on_token(self, token: Token) -> bool:
        """Store the token."""
        self.tokens.append(token)
        return False

    def on_end(self, reason: str, error: RequestError | None = None) -> None:
        """Store the end."""
        self.reason, self.error = reason, error
        self.is_done.set()
