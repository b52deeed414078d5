"""What a user does with a model: train it, evaluate it, sweep over ways to compress it."""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "METRICS": "chop.actions.metrics",
    "GraphTrainer": "chop.actions.trainer",
    "get_trainer": "chop.actions.train",
}
"""Name -> module: training needs packages that other actions do not."""

__all__ = ["METRICS", "GraphTrainer", "get_trainer"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'chop.actions' has no attribute '{name}'")
