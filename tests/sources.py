"""Syntax trees of the package's files, parsed once for all tests of a process."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def tree_of(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))
