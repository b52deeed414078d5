"""Shapes of parts, and the layouts of gradients."""

import doctest

import pytest

from chop.distributed import cost, layouts
from chop.distributed.layouts import gradient_of, local_shape, use_of, whole_shape
from chop.ir import dims


@pytest.mark.parametrize("module", [layouts, cost, dims], ids=lambda m: m.__name__)
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_whole_shape_undoes_local_shape():
    split = [("S0", 2), ("S2", 3)]
    assert whole_shape(local_shape((4, 5, 6), split), split) == (4, 5, 6)


def test_gradient_of_a_whole_operand_of_shared_work_is_a_sum():
    assert use_of("R", is_split=True).gradient == "P"
    assert use_of("R", is_split=False).gradient == "R"


def test_every_term_of_a_sum_gets_the_whole_gradient():
    assert gradient_of("P") == "R"
    assert gradient_of("S1") == "S1"
