"""Search: spaces, samplers and studies that survive a kill and run on every core and machine."""

from __future__ import annotations

import importlib
from typing import Any

from chop.errors import MissingDependencyError

_LAZY = {
    "COSTS": "chop.search.costs",
    "ENGINES": "chop.search.workers",
    "PRUNERS": "chop.search.samplers",
    "SAMPLERS": "chop.search.samplers",
    "SPACES": "chop.search.space",
    "ArchitectureEvaluator": "chop.search.evaluate",
    "ArchitectureSpace": "chop.search.architecture",
    "Choice": "chop.search.space",
    "CompressionEvaluator": "chop.search.evaluate",
    "CompressionSpace": "chop.search.compression",
    "Evaluate": "chop.search.trial",
    "HardwareEvaluator": "chop.search.hardware_evaluate",
    "HardwareSpace": "chop.search.hardware",
    "HardwareTable": "chop.search.hardware",
    "InfeasibleError": "chop.search.architecture",
    "Integer": "chop.search.space",
    "ModelEvaluator": "chop.search.evaluate",
    "PrecisionEvaluator": "chop.search.evaluate",
    "PrecisionSpace": "chop.search.precision",
    "Product": "chop.search.space",
    "Progress": "chop.search.progress",
    "ProgressBar": "chop.search.progress",
    "PruneSpace": "chop.search.compression",
    "Pruned": "chop.search.trial",
    "Real": "chop.search.space",
    "SearchPlan": "chop.search.plan",
    "SearchResult": "chop.search.study",
    "Space": "chop.search.space",
    "TrainingSpace": "chop.search.training",
    "TrialContext": "chop.search.trial",
    "load_study": "chop.search.study",
    "search": "chop.search.study",
}
"""Name -> module: the engine needs packages that spaces do not."""

_PACKAGES = ("optuna", "cloudpickle", "sqlalchemy")

__all__ = [
    "COSTS",
    "ENGINES",
    "PRUNERS",
    "SAMPLERS",
    "SPACES",
    "ArchitectureEvaluator",
    "ArchitectureSpace",
    "Choice",
    "CompressionEvaluator",
    "CompressionSpace",
    "Evaluate",
    "HardwareEvaluator",
    "HardwareSpace",
    "HardwareTable",
    "InfeasibleError",
    "Integer",
    "ModelEvaluator",
    "PrecisionEvaluator",
    "PrecisionSpace",
    "Product",
    "Progress",
    "ProgressBar",
    "PruneSpace",
    "Pruned",
    "Real",
    "SearchPlan",
    "SearchResult",
    "Space",
    "TrainingSpace",
    "TrialContext",
    "load_study",
    "search",
]


def submodule(name: str) -> Any:
    """Import the module `name` of this package; several are heavy, so nothing imports them all."""
    return importlib.import_module(f"chop.search.{name}")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'chop.search' has no attribute '{name}'")
    try:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise MissingDependencyError(
            f"chop.search.{name}: {error.name} is not installed. "
            "Install it: pip install 'masegraph[search]'."
        ) from error
    globals()[name] = value  # over the submodule of the same name, where there is one
    return value
