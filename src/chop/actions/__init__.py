"""What a user does with a model: train it, evaluate it, sweep over ways to compress it."""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "METRICS": "chop.actions.metrics",
    "SWEEPS": "chop.actions.sweeps",
    "GraphTrainer": "chop.actions.trainer",
    "Subject": "chop.actions.subject",
    "get_trainer": "chop.actions.train",
    "sweep": "chop.actions.sweeps",
    "trained_subject": "chop.actions.subject",
}
"""Name -> module: training needs packages that other actions do not."""

__all__ = [
    "METRICS",
    "SWEEPS",
    "GraphTrainer",
    "Subject",
    "get_trainer",
    "sweep",
    "trained_subject",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'chop.actions' has no attribute '{name}'")
