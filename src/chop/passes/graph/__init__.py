"""Passes on a MaseGraph: all passes of the three packages."""

from typing import TYPE_CHECKING

from chop.compat.old_names import lazy_names
from chop.passes.graph import analysis, interface, transforms
from chop.passes.graph.analysis import *  # noqa: F403
from chop.passes.graph.interface import *  # noqa: F403
from chop.passes.graph.transforms import *  # noqa: F403

if not TYPE_CHECKING:  # type checkers read the lines above, and no __all__ that is computed
    __all__ = [*analysis.__all__, *interface.__all__, *transforms.__all__]

__getattr__ = lazy_names(__name__)
