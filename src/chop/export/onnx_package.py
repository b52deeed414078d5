"""Lazy import of the packages that ONNX needs."""

from __future__ import annotations

import importlib
from typing import Any

from chop.errors import MissingDependencyError


def onnx_package(name: str) -> Any:
    """Import the package `name`; raise with the install command if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"ONNX needs the package {name}: pip install 'masegraph[export]'."
        ) from error
