"""The documented names of the tools, gathered in one place; nothing inside imports it."""

from __future__ import annotations

import importlib
from typing import Any

from chop.log import get_logger, set_logging_verbosity

__all__ = [
    "get_logger",
    "get_tokenized_dataset",
    "get_trainer",
    "set_logging_verbosity",
]

_LAZY: dict[str, str] = {
    "get_tokenized_dataset": "chop.dataset",
    "get_trainer": "chop.actions.train",
}
"""Name -> module, for tools whose import is heavy."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'chop.tools' has no attribute '{name}'")
