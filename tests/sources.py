"""Syntax trees of the package's files, parsed once for all tests of a process."""

from __future__ import annotations

import ast
import functools
import weakref
from pathlib import Path


@functools.cache
def tree_of(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


_NODES: weakref.WeakKeyDictionary[ast.AST, list[ast.AST]] = weakref.WeakKeyDictionary()


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes of a syntax tree. To walk through it takes as long as to parse it."""
    if tree not in _NODES:
        _NODES[tree] = list(ast.walk(tree))
    return _NODES[tree]
