"""Modules of other folders, for benchmarks that run what examples and tests have."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def load(path: str) -> Any:
    """A module by its file, from the project's folder."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None, f"{path} is not there"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
