"""A mesh says what is wrong with it."""

import pytest

from chop.distributed.mesh import Mesh
from chop.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shape": ()}, r"mesh shape \[\]: expected one to three axes"),
        ({"shape": (2, 2, 2, 2)}, r"mesh shape \[2, 2, 2, 2\]: expected one to three axes"),
        ({"shape": (2, 0)}, "of at least 1 device"),
        ({"shape": (2,), "latency": (1.0, 2.0)}, "mesh latency has 2 values for 1 axes"),
        ({"bandwidth": (0.0,)}, r"mesh bandwidth \[0.0\]: out of range"),
        ({"flops": 0.0}, "mesh flops must be above 0, got 0.0"),
        ({"memory": 0}, "mesh memory must be above 0 bytes, got 0"),
    ],
)
def test_a_value_out_of_range_is_an_error_that_names_it(fields, words):
    with pytest.raises(ConfigError, match=words):
        Mesh(**fields)


def test_one_value_stands_for_all_axes():
    mesh = Mesh((2, 4), bandwidth=(1e9, 2e9), latency=(1e-6,))
    assert mesh.devices == 8
    assert (mesh.axis(0).bandwidth, mesh.axis(1).bandwidth) == (1e9, 2e9)
    assert mesh.axis(0).latency == mesh.axis(1).latency
