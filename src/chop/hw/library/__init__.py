"""The components of the library, each in a folder that is found by its place."""

from chop.hw.design.folders import load_components

load_components()  # first: messages list the products in the order of registration

from chop.hw.library import averages, packed, slice_lowerings, wiring  # noqa: E402
from chop.hw.lower.lowerings import check_op_table  # noqa: E402

__all__ = ["averages", "packed", "slice_lowerings", "wiring"]

check_op_table()
