"""Documented names of the tools in one place; no other package imports it.

Names with a slow import are rows of `chop.compat.old_names`.
"""

from __future__ import annotations

from chop.compat.old_names import lazy_names
from chop.log import get_logger, set_logging_verbosity

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
