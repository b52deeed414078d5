"""Search: spaces, samplers and studies that survive a kill and run on every core and machine."""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "SPACES": "chop.search.space",
    "Choice": "chop.search.space",
    "Evaluate": "chop.search.trial",
    "Integer": "chop.search.space",
    "Product": "chop.search.space",
    "Pruned": "chop.search.trial",
    "Real": "chop.search.space",
    "Space": "chop.search.space",
    "TrialContext": "chop.search.trial",
}
"""Name -> module: the engine needs packages that spaces do not."""

__all__ = [
    "SPACES",
    "Choice",
    "Evaluate",
    "Integer",
    "Product",
    "Pruned",
    "Real",
    "Space",
    "TrialContext",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value  # over the submodule of the same name, where there is one
        return value
    raise AttributeError(f"module 'chop.search' has no attribute '{name}'")
