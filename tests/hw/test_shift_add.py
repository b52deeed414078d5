"""Networks of shifted additions: every product exact, shared, and a choice for each layer."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from chop import MaseGraph
from chop.errors import ChopError
from chop.hw.arith.golden import Fixed
from chop.hw.arith.shift_add import build, signed_digits
from chop.hw.design.stream import Stream
from chop.hw.library.components import Linear, ShiftAdd
from chop.hw.library.fixed_linear import Weights, sample_weights
from chop.hw.library.fixed_shift_add import NetworkTiming
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.component_check import check_components
from chop.hw.sim.simulate import lint
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    add_hardware_metadata_analysis_pass,
    init_metadata_analysis_pass,
)

BYTE = Fixed(8, 4)


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def graph_of(model, inputs=6):
    return annotated(model, torch.randn(1, inputs))


def annotated(model, example):
    """The graph of a model, every value in fixed point of 8 bits."""
    graph = MaseGraph(model.eval(), dummy_in={"x": example})
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    for node in graph.fx_graph.nodes:
        common = node.meta["mase"]["common"]
        for value in (*common["args"].values(), *common["results"].values()):
            value["type"], value["precision"] = "fixed", [8, 5]
    return graph


def run_network(network, x):
    """The rows of the product, by the nodes alone, in Python's integers."""
    values = [int(v) for v in x]
    for node in network.nodes:
        shifted = values[node.right] * 2**node.shift
        values.append(values[node.left] + (shifted if node.sign > 0 else -shifted))
    rows = [(values[r.node] * 2**r.shift if r.node >= 0 else 0) for r in network.results]
    return [v if r.sign > 0 else -v for v, r in zip(rows, network.results, strict=True)]


def test_signed_digits_are_the_number_and_no_two_are_neighbours():
    for number in (*range(-600, 600), 2**31 - 1, -(2**31)):
        digits = signed_digits(number)
        places = [place for place, _ in digits]
        assert sum(sign * 2**place for place, sign in digits) == number
        assert all(b - a > 1 for a, b in pairwise(places))
        assert {sign for _, sign in digits} <= {1, -1}


@pytest.mark.parametrize("seed", range(40))
def test_a_network_is_the_product(seed):
    rng = np.random.default_rng(seed)
    rows, inputs, bits = rng.integers(1, 9), rng.integers(1, 9), rng.integers(1, 17)
    matrix = rng.integers(-(2**bits), 2**bits, (rows, inputs)) * rng.integers(0, 2, (rows, inputs))
    network = build(matrix)
    for x in rng.integers(-(2**12), 2**12, (4, inputs)):
        assert run_network(network, x) == [
            sum(int(a) * int(b) for a, b in zip(row, x, strict=True)) for row in matrix
        ]
    spans = network.spans(-8, 7)
    for x in ([-8] * inputs, [7] * inputs, rng.integers(-8, 8, inputs)):
        values = [int(np.dot(row, np.array(x, dtype=object))) for row in network.coefficients()]
        assert all(s.low <= v <= s.high for s, v in zip(spans, values, strict=True))


def test_what_rows_have_in_common_is_added_once():
    rows = np.array([[5, 3, 1], [5, 3, 0], [10, 6, 7]])  # 5 a + 3 b, once
    digits = sum(len(signed_digits(int(w))) for w in rows.reshape(-1))
    assert len(build(rows).nodes) < digits - len(rows)
    assert len(build(np.tile(rows[:1], (8, 1))).nodes) == len(build(rows[:1]).nodes)


@pytest.mark.parametrize("step", [1, 2, 5])
def test_operands_are_never_late(step):
    network = build(np.random.default_rng(1).integers(-128, 128, (6, 6)))
    timing = NetworkTiming(network, step)
    for k, node in enumerate(network.nodes, network.inputs):
        for operand in (node.left, node.right):
            assert 0 <= timing.before(k) - timing.at(operand) <= timing.delays()[operand]


def test_a_design_mixes_both_ways_and_is_the_model():
    graph = graph_of(Mlp())
    args = {"multiplier": {"fc1": "shift_add"}, "max_parallelism": 8, "adders_per_stage": 3}
    graph, told = add_hardware_metadata_analysis_pass(graph, args)
    lowered = lower(graph, Parallelism(8, multiplier={"fc1": "shift_add"}, adders_per_stage=3))
    kinds = {name: type(c) for name, c in lowered.components.items()}
    assert (kinds["fc1"], kinds["fc2"]) == (ShiftAdd, Linear)
    assert told["multipliers"] == 15
    verify(graph, lowered, None)


def test_a_whole_design_has_no_multiplier_and_takes_a_vector_in_each_cycle():
    graph = graph_of(Mlp())
    args = {"multiplier": {"*": "shift_add"}, "max_parallelism": 8}
    graph, told = add_hardware_metadata_analysis_pass(graph, args)
    assert told == {"cycles": 1, "multipliers": 0}


def test_an_unknown_way_is_refused_with_the_nearest():
    with pytest.raises(ChopError, match=r"fc1.*multiplier 'shift_ad'.*Did you mean 'shift_add'"):
        lower(graph_of(Mlp()), Parallelism(8, multiplier={"fc1": "shift_ad"}))


def test_settings_that_cannot_be_are_refused():
    weights = sample_weights(2, 4)
    with pytest.raises(ChopError, match="adders_per_stage must be 1 or more, got 0"):
        ShiftAdd(Stream((4,), 4, BYTE), weights, BYTE, 0)
    with pytest.raises(ChopError, match="4 inputs in one beat, the stream has 2"):
        ShiftAdd(Stream((4,), 2, BYTE), weights, BYTE)
    with pytest.raises(ChopError, match="adders_per_stage must be 1 or more, got 0"):
        add_hardware_metadata_analysis_pass(graph_of(Mlp()), {"adders_per_stage": 0})


def random_layer(seed):
    rng = np.random.default_rng(seed)

    def number():
        width = int(rng.integers(1, 10))
        return Fixed(width, int(rng.integers(-2, 8)), bool(rng.integers(0, 2)))

    inputs, outputs = int(rng.integers(1, 7)), int(rng.integers(1, 6))
    bias = number() if rng.integers(0, 2) else None
    weights = sample_weights(outputs, inputs, number(), bias)
    sparse = weights.weight * rng.integers(0, 2, weights.weight.shape)
    weights = Weights(sparse, weights.weight_format, weights.bias, weights.bias_format)
    return ShiftAdd(
        Stream((2, inputs), inputs, number()), weights, number(), int(rng.integers(1, 5))
    )


@pytest.mark.slow
@pytest.mark.sim
def test_random_layers_are_exact_in_rtl_in_the_cycles_of_the_model(tmp_path):
    verdicts = check_components([random_layer(seed) for seed in range(12)], tmp_path)
    assert all(v.mismatches == 0 and v.compared for v in verdicts)
    assert lint(tmp_path) == ""
