"""Fixtures of the pass tests."""

import logging
from collections.abc import Iterator

import pytest


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the package's loggers say, in order; reports are not among it."""
    listener, logger = _Listener(), logging.getLogger("chop")
    logger.addHandler(listener)
    yield listener.messages
    logger.removeHandler(listener)
