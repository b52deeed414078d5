"""Loggers of the package, with level WARNING by default."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator

from chop.printable import printable

ROOT = "chop"
_FORMAT = "%(levelname)-8s %(message)s"
_LEVELS = ("debug", "info", "warning", "error", "critical")


class PrintableFormatter(logging.Formatter):
    """Formatter that escapes control characters: messages may contain names from files."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return printable(super().format(record))


def get_logger(name: str = ROOT) -> logging.Logger:
    """Return the logger `name`, with one handler to stderr and level WARNING by default.

    >>> get_logger("mase_logger").setLevel("INFO")
    """
    inside = name == ROOT or name.startswith(f"{ROOT}.")
    owner = logging.getLogger(ROOT if inside else name)
    if not owner.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(PrintableFormatter(_FORMAT))
        owner.addHandler(handler)
        owner.propagate = False
        if owner.level == logging.NOTSET:
            owner.setLevel(logging.WARNING)
    return logging.getLogger(name)


StepListener = Callable[[str, int, int], None]
_LISTENERS: list[StepListener] = []


def log_step(logger: logging.Logger, stage: str, number: int, total: int, what: str = "") -> None:
    """Log step `number` of `total` of a long stage, and report it to those who listen."""
    logger.info("%s: %d of %d%s", stage, number, total, f", {what}" if what else "")
    for listener in _LISTENERS:
        listener(stage, number, total)


@contextlib.contextmanager
def listening_to_steps(listener: StepListener) -> Iterator[None]:
    """Call `listener(stage, number, total)` for every step of long work inside the context."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


@functools.cache
def warn_once(name: str, message: str) -> None:
    """Log a warning by the logger `name`, once per message and process."""
    get_logger(name).warning(message)


class _StandardOutput(logging.Handler):
    """Handler that writes to the current `sys.stdout`."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stdout.write(printable(self.format(record)) + "\n")


def get_report_logger() -> logging.Logger:
    """Return the logger of report tables: bare text on stdout, at level INFO.

    Silence it with `get_logger("chop.report").setLevel("WARNING")`.
    """
    logger = get_logger(f"{ROOT}.report")
    if not logger.handlers:
        logger.addHandler(_StandardOutput())
        logger.propagate = False
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    return logger


def set_logging_verbosity(level: str | int = "info") -> None:
    """Make every logger of this package log messages of `level` and above."""
    if not isinstance(level, int) and str(level).lower() not in _LEVELS:
        allowed = ", ".join(_LEVELS)
        raise ValueError(f"set_logging_verbosity: unknown level '{level}'. Allowed: {allowed}.")
    get_logger(ROOT).setLevel(level.upper() if isinstance(level, str) else level)
