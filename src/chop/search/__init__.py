"""Search: spaces, samplers and studies that survive a kill and run on every core and machine."""

from __future__ import annotations

import importlib
from typing import Any

from chop.errors import MissingDependencyError

_NAMES = {
    "architecture": ("ArchitectureSpace", "InfeasibleError"),
    "compression": ("CompressionSpace", "PruneSpace"),
    "costs": ("COSTS",),
    "evaluate": (
        *("ArchitectureEvaluator", "CompressionEvaluator", "ModelEvaluator", "PrecisionEvaluator"),
    ),
    "hardware_evaluate": ("HardwareEvaluator",),
    "hardware_space": ("HardwareSpace", "HardwareTable"),
    "precision": ("PrecisionSpace",),
    "progress": ("Progress", "ProgressBar"),
    "samplers": ("PRUNERS", "SAMPLERS"),
    "search_plan": ("SearchPlan",),
    "space": ("Choice", "Integer", "Product", "Real", "SPACES", "Space"),
    "study": ("SearchResult", "load_study", "search"),
    "training": ("TrainingSpace",),
    "trial": ("Evaluate", "Pruned", "TrialContext"),
    "workers": ("ENGINES",),
}
"""Module -> its public names, imported lazily: the engine needs packages that spaces do not."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
_PACKAGES = ("optuna", "cloudpickle", "sqlalchemy")

__all__ = sorted(_MODULES)


def submodule(name: str) -> Any:
    """Import the module `name` of this package; several are heavy, so nothing imports them all."""
    return importlib.import_module(f"chop.search.{name}")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'chop.search' has no attribute '{name}'")
    try:
        value = getattr(submodule(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise MissingDependencyError(
            f"chop.search.{name}: {error.name} is not installed. "
            "Install it: pip install 'masegraph[search]'."
        ) from error
    globals()[name] = value  # replaces the submodule of the same name, if there is one
    return value
