"""Documented names of the tools; nothing inside imports this package.

Names with heavy imports are rows of `chop.old_names`.
"""

from __future__ import annotations

from chop.log import get_logger, set_logging_verbosity
from chop.old_names import lazy_names

__all__ = [
    "InputGenerator",
    "get_cf_args",
    "get_dummy_input",
    "get_logger",
    "get_tokenized_dataset",
    "get_trainer",
    "set_logging_verbosity",
]

__getattr__ = lazy_names(__name__)
