"""The components of the library, each in a folder that is found by its place."""

from chop.hw.design.folders import load_components
from chop.hw.library import averages, packed, picking, wiring
from chop.hw.lower.registry import check_op_table

__all__ = ["averages", "packed", "picking", "wiring"]

load_components()
check_op_table()
