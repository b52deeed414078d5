"""The packages that ONNX needs, asked for when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from chop.errors import MissingDependencyError


def onnx_package(name: str) -> Any:
    """The package `name`; where it is missing, the error says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"ONNX needs the package {name}: pip install 'masegraph[export]'."
        ) from error
