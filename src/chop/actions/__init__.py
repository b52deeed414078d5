"""What a user does with a model: train it, sweep over ways to compress it, build its hardware."""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "METRICS": "chop.actions.metrics",
    "SWEEPS": "chop.actions.sweeps",
    "GraphTrainer": "chop.actions.trainer",
    "HardwareBuild": "chop.actions.hardware",
    "ShardArgs": "chop.actions.sharding",
    "ShardResult": "chop.actions.sharding",
    "Subject": "chop.actions.model_under_study",
    "build_hardware": "chop.actions.hardware",
    "get_trainer": "chop.actions.train",
    "shard": "chop.actions.sharding",
    "simulate": "chop.actions.simulation",
    "sweep": "chop.actions.sweeps",
    "synthesize": "chop.actions.simulation",
    "trained_subject": "chop.actions.model_under_study",
}
"""Name -> module: training needs packages that other actions do not."""

__all__ = [
    "METRICS",
    "SWEEPS",
    "GraphTrainer",
    "HardwareBuild",
    "ShardArgs",
    "ShardResult",
    "Subject",
    "build_hardware",
    "get_trainer",
    "shard",
    "simulate",
    "sweep",
    "synthesize",
    "trained_subject",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value  # over the submodule of the same name, where there is one
        return value
    raise AttributeError(f"module 'chop.actions' has no attribute '{name}'")
