"""Loggers: silent below WARNING until the user asks for more."""

from __future__ import annotations

import functools
import logging
import sys

from chop.printable import printable

ROOT = "chop"
_FORMAT = "%(levelname)-8s %(message)s"
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class PrintableFormatter(logging.Formatter):
    """Formatter that escapes control characters: messages may carry names from files."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return printable(super().format(record))


def get_logger(name: str = ROOT) -> logging.Logger:
    """The logger `name`, with one handler to stderr, WARNING by default.

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


@functools.cache
def warn_once(name: str, message: str) -> None:
    """Warn through the logger `name`; the same message is said once in the life of the program."""
    get_logger(name).warning(message)


class _StandardOutput(logging.Handler):
    """Writes to whatever `sys.stdout` is when a record arrives."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stdout.write(printable(self.format(record)) + "\n")


def get_report_logger() -> logging.Logger:
    """The logger of tables the user asked for by running a report: bare text on stdout at INFO.

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
    """Make every logger of this package say messages of `level` and above."""
    number = _LEVELS.get(level.lower()) if isinstance(level, str) else level
    if number is None:
        allowed = ", ".join(_LEVELS)
        raise ValueError(f"set_logging_verbosity: unknown level '{level}'. Allowed: {allowed}.")
    get_logger(ROOT).setLevel(number)
