"""Loggers, under an older import path."""

from chop.log import get_logger, set_logging_verbosity

__all__ = ["get_logger", "set_logging_verbosity"]
