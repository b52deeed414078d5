"""Passes: analyse and transform a MaseGraph, or a plain module.

Every registered pass is an attribute of this package, also one that is registered later.
"""

from typing import TYPE_CHECKING, Any

from chop.compat.old_names import lazy_names
from chop.passes import graph, module
from chop.passes.base import PASSES as PASSES
from chop.passes.base import graph_pass as graph_pass
from chop.passes.graph import *  # noqa: F403
from chop.passes.module import *  # noqa: F403

_KINDS = {
    "ANALYSIS_PASSES": "_analysis_pass",
    "TRANSFORM_PASSES": "_transform_pass",
    "INTERFACE_PASSES": "_interface_pass",
}

ANALYSIS_PASSES: tuple[str, ...]
TRANSFORM_PASSES: tuple[str, ...]
INTERFACE_PASSES: tuple[str, ...]
"""Names of the passes of each kind, as the registry has them."""

if not TYPE_CHECKING:  # type checkers read the lines above, and no __all__ that is computed
    __all__ = ["PASSES", "graph_pass", *_KINDS, *graph.__all__, *module.__all__]

_old_name = lazy_names(__name__)


def __getattr__(name: str) -> Any:
    if name in _KINDS:
        return PASSES.ending(_KINDS[name])
    return PASSES[name] if name in PASSES else _old_name(name)
