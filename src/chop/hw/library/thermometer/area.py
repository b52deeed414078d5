"""The thermometer code has no area model: sums of tables, which follow, have none either."""

from chop.hw.area.area_model import UNMODELLED
from chop.hw.library.thermometer import ThermometerCode

UNMODELLED.append(ThermometerCode)
