"""Random models to RTL: PyTorch = exact reference = RTL, or a refusal that names the node.

The same in thousands: bench/right.py.
"""

import pytest
from hardware_fuzz import counts, fuzz

pytestmark = pytest.mark.sim("verilator", "g++")

PART, PARTS = 50, 4


@pytest.mark.parametrize("part", range(PARTS))
def test_random_models_are_right_in_rtl_or_refused(part, tmp_path):
    found = counts(fuzz(range(part * PART, (part + 1) * PART), tmp_path))
    assert found["wrong_seeds"] == {}
    assert found["models"] == PART
    assert found["equal"] >= 0.75 * PART, found["refused_by_reason"]  # refusing all is no answer
