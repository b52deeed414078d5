"""Two products by one multiplier: exact for all operands, where the part has room for them."""

from itertools import product

import numpy as np
import pytest
import torch

from chop.errors import ChopError
from chop.hw.arith.golden import Fixed
from chop.hw.library.packed import PackedLinear, families, pair_width
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.design_cache import attached_design
from chop.hw.lower.verify import verify
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from tests.hw.test_shift_add import Mlp, annotated, graph_of


def test_both_products_of_bytes_are_in_one_of_25_and_8_bits():
    numbers = np.arange(-128, 128, dtype=np.int64)
    x, a = numbers[:, None], numbers[None]
    for b in (-128, -127, -1, 0, 1, 77, 127):
        joined = b * 2**16 + a
        assert joined.min() >= -(2**24) and joined.max() < 2**24
        both = x * joined
        low = (both + 2**15) % 2**16 - 2**15
        assert (low == x * a).all()
        assert ((both >> 16) + (low < 0) == x * b).all()


def test_families_are_those_whose_multiplier_has_room():
    for x, w in product(range(2, 12), repeat=2):
        bits = pair_width(Fixed(x, 0), Fixed(w, 0))
        lowest = -(2 ** (w - 1)) * 2 ** (x + w) - 2 ** (w - 1)
        assert -(2 ** (bits - 1)) <= lowest < -(2 ** (bits - 2)), "not one bit too many"
    assert families(Fixed(8, 4), Fixed(8, 4)) == ["xc7"]
    assert families(Fixed(5, 4), Fixed(5, 4)) == ["xc7", "ecp5"]
    assert families(Fixed(8, 4, is_signed=False), Fixed(8, 4)) == []


def test_a_layer_may_have_half_the_multipliers_and_is_the_model():
    args = {"multiplier": {"fc1": "packed"}, "parallelism": {"fc1": [3, 5], "fc2": [5, 1]}}
    graph, told = add_hardware_metadata_analysis_pass(graph_of(Mlp()), args)
    layer = attached_design(graph).components["fc1"]
    assert isinstance(layer, PackedLinear)
    assert (layer.cost().multipliers, told["multipliers"]) == (9, 9 + 5)
    verify(graph, attached_design(graph), None)


def test_what_does_not_fit_is_refused():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 2, 3)

        def forward(self, x):
            return self.conv(x)

    with pytest.raises(ChopError, match=r"conv.*multiplier 'packed'.*'array', 'shift_add'"):
        lower(annotated(Net(), torch.randn(1, 1, 4, 4)), Parallelism(2, multiplier={"*": "packed"}))
    graph = graph_of(Mlp())
    for node in graph.fx_graph.nodes:
        if node.name == "fc1":
            node.meta["mase"]["common"]["args"]["weight"]["precision"] = [9, 5]
    with pytest.raises(ChopError, match=r"8 bits and two weights of 9 take 27 bits.*25 on xc7"):
        lower(graph, Parallelism(2, multiplier={"fc1": "packed"}))
