"""How dimensions are carried: what structured pruning and sharding make of every op."""

import dimension_cases
import pytest

from chop.ir.channels import CHANNELS
from chop.ir.sharding import SHARDING


@pytest.fixture(scope="module")
def told():
    return dimension_cases.told()


def test_every_op_with_a_rule_has_a_case():
    ops = {case.op for case in dimension_cases.CASES}
    assert set(CHANNELS) | set(SHARDING) == ops | {"finfo"}  # which takes no tensor


@pytest.mark.parametrize("consumer", [0, 1], ids=["pruning", "sharding"])
def test_what_is_made_of_every_op_is_as_it_was(told, consumer):
    pinned = dimension_cases.pinned()
    assert list(told) == list(pinned)
    changed = {
        name: (pinned[name][consumer], told[name][consumer])
        for name in told
        if told[name][consumer] != pinned[name][consumer]
    }
    assert changed == {}
