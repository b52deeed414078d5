"""Choice of parallelism, arithmetic and sharing for a goal.

`for_target` and `for_budget` count multipliers. `best` counts what a part has: LUTs, flip-flops,
DSPs and memories, as `chop.hw.flow.predict` predicts them, and a clock.
"""

from typing import TYPE_CHECKING

from chop.compat.old_names import lazy_names
from chop.hw.flow.explore.best import DesignChoice as DesignChoice
from chop.hw.flow.explore.best import Wish as Wish
from chop.hw.flow.explore.best import best as best
from chop.hw.flow.explore.best import best_of as best_of
from chop.hw.flow.explore.folding import Folding as Folding
from chop.hw.flow.explore.folding import for_budget as for_budget
from chop.hw.flow.explore.folding import for_target as for_target

if not TYPE_CHECKING:  # mypy would accept any name
    __getattr__ = lazy_names(__name__)
