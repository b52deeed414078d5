"""Lookup tables have no area model: sums of tables, which follow, have none either."""

from chop.hw.area.area_model import UNMODELLED
from chop.hw.library.lookup_tables import Tables

UNMODELLED.append(Tables)
