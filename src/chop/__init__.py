"""MASE: capture a model as an annotated graph, then analyse, compress, search, run or build it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from chop import notebook
from chop.compat.old_modules import find_old_modules
from chop.ir import decode_steps

if TYPE_CHECKING:
    from chop.ir.graph import MaseGraph as MaseGraph

__all__ = ["MaseGraph"]

_LAZY = {"MaseGraph": "chop.ir.graph"}
_SUBMODULES = (
    *("actions", "dataset", "distributed", "ir", "models"),
    *("nn", "passes", "pipelines", "report", "tools"),
)

_VIEWS = ("chop.hw.flow.hardware_report", "chop.report.notebook_views")
"""Modules that register views for notebooks; imported when the first object is shown."""

notebook.load_views_by(lambda: [importlib.import_module(name) for name in _VIEWS])
decode_steps.load_compiler_by(
    lambda: importlib.import_module("chop.kernels.native_step").NativeStep
)
find_old_modules()


def __getattr__(name: str) -> Any:
    # imported lazily, so that `import chop` is fast
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"chop.{name}")
    raise AttributeError(f"module 'chop' has no attribute '{name}'")
