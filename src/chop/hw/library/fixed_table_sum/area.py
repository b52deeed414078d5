"""Sums of tables have no area model: none was ever measured."""

from chop.hw.area.area_model import UNMODELLED
from chop.hw.library.fixed_table_sum import TableSum

UNMODELLED.append(TableSum)
