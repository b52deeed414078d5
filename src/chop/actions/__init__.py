"""Actions on a model: train it, sweep over compressions, build its hardware."""

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
    "Subject": "chop.actions.study_subject",
    "build_hardware": "chop.actions.hardware",
    "get_trainer": "chop.actions.train",
    "shard": "chop.actions.sharding",
    "simulate": "chop.actions.simulation",
    "sweep": "chop.actions.sweeps",
    "synthesize": "chop.actions.simulation",
    "trained_subject": "chop.actions.study_subject",
}
"""Name -> module. Training needs packages that other actions do not."""

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value  # hides a submodule of the same name
        return value
    raise AttributeError(f"module 'chop.actions' has no attribute '{name}'")
