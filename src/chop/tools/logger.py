"""Loggers, under the import path that programs know them by."""

from chop.log import get_logger, set_logging_verbosity

__all__ = ["get_logger", "set_logging_verbosity"]
