"""The alpha-beta model of collectives."""

import pytest

from chop.distributed.cost import (
    COLLECTIVES,
    collective,
    collective_bytes,
    collective_seconds,
    reshard,
)
from chop.distributed.layouts import Use
from chop.distributed.mesh import Axis

AXIS = Axis(devices=4, bandwidth=1e9, latency=1e-6)


def test_all_reduce_is_reduce_scatter_and_all_gather():
    parts = [collective_seconds(n, 4096, AXIS) for n in ("reduce_scatter", "all_gather")]
    assert collective_seconds("all_reduce", 4096, AXIS) == pytest.approx(sum(parts))


def test_exchange_sends_only_what_a_device_holds():
    assert collective_bytes("all_to_all", 4096, AXIS) * 4 == collective_bytes(
        "all_gather", 4096, AXIS
    )


@pytest.mark.parametrize("name", COLLECTIVES)
def test_one_device_has_nobody_to_talk_to(name):
    assert collective_seconds(name, 4096, Axis(1, 1e9, 1e-6)) == 0


@pytest.mark.parametrize("layout", ["R", "S0", "S1", "P"])
def test_staying_and_leaving_whole_cost_nothing(layout):
    assert collective(layout, layout) is None
    assert collective("R", layout) is None


def test_split_work_on_a_whole_value_sums_its_gradient():
    assert reshard("R", Use("R", "P"), has_gradient=True) == ["all_reduce"]
    assert reshard("R", Use("R", "P"), has_gradient=False) == []


def test_a_split_parameter_read_whole_is_gathered_and_its_gradient_scattered():
    assert reshard("S0", Use("R", "P"), has_gradient=True) == ["all_gather", "reduce_scatter"]
