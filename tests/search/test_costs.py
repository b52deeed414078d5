import copy

import pytest
import torch
from compression_models import INTEGER, annotated, mlp_graph
from hw.hardware_models import SmallMlp, fixed_graph

from chop import MaseGraph
from chop.errors import ConfigError, HardwareError
from chop.passes import quantize_transform_pass
from chop.search.costs import COSTS, compute_costs

SOFTWARE = ["average_bits", "average_activation_bits", "average_linear_bits", "model_bytes"]
PARAMETERS = 8 * 16 + 16 + 16 * 12 + 12 + 12 * 4 + 4


def quantized():
    graph = mlp_graph()
    quantize_transform_pass(graph, {"by": "name", "fc1": {"config": INTEGER}})
    return graph


def test_a_float_model_takes_32_bits_a_weight():
    costs = compute_costs(mlp_graph(), [*SOFTWARE, "parameters"])
    assert costs["average_bits"] == costs["average_linear_bits"] == 32
    assert costs["average_activation_bits"] == 32
    assert costs["parameters"] == PARAMETERS
    assert costs["model_bytes"] == 4 * PARAMETERS


def test_a_quantised_layer_counts_in_its_format():
    costs = compute_costs(quantized(), SOFTWARE)
    eight = 8 * 16 + 16
    assert costs["model_bytes"] == eight + 4 * (PARAMETERS - eight)
    assert costs["average_bits"] == pytest.approx(8 * costs["model_bytes"] / PARAMETERS)


def test_operations_are_counted_at_the_shapes_of_the_trace():
    costs = compute_costs(mlp_graph(), ["macs", "flops"])
    assert costs["macs"] == 5 * (8 * 16 + 16 * 12 + 12 * 4)
    assert costs["flops"] >= 2 * costs["macs"]


def test_latency_is_measured():
    assert compute_costs(mlp_graph(), ["latency"])["latency"] > 0


def test_latency_needs_example_inputs():
    graph = annotated(mlp_graph())
    graph.dummy_in = None
    with pytest.raises(ConfigError, match=r"latency needs a graph with example inputs"):
        compute_costs(graph, ["latency"])


def test_hardware_costs_come_from_the_design():
    graph = fixed_graph(SmallMlp(), torch.randn(1, 4))
    costs = compute_costs(graph, ["cycles", "multipliers", "memory_bits"])
    assert costs["multipliers"] == 16  # 4 lanes in, 4 out
    assert costs["cycles"] == 2  # 8 outputs, 4 at a time
    assert costs["memory_bits"] == 8 * (4 * 8 + 8)


@pytest.mark.slow
@pytest.mark.sim
def test_look_up_tables_come_from_synthesis():
    pytest.importorskip("pyosys", reason="synthesis needs pyosys")
    assert compute_costs(fixed_graph(SmallMlp(), torch.randn(1, 4)), ["lut"])["lut"] > 0


def test_a_graph_that_cannot_be_lowered_says_so():
    with pytest.raises(HardwareError, match=r"cycles: the graph cannot become hardware: node 'x'"):
        compute_costs(annotated(mlp_graph()), ["cycles"])


def test_an_unknown_cost_is_refused():
    with pytest.raises(ConfigError, match=r"costs: unknown cost 'flop'. Did you mean 'flops'"):
        compute_costs(mlp_graph(), ["flop"])
    assert {"average_bits", "flops", "latency", "cycles", "lut"} <= set(COSTS)


def test_a_graph_with_nothing_to_quantise_has_no_average():
    graph = MaseGraph(torch.nn.Flatten(), dummy_in=torch.randn(2, 3))
    with pytest.raises(ConfigError, match=r"nothing to count for w_avg_bit"):
        compute_costs(graph, ["average_bits"])


def test_computing_costs_leaves_the_model_as_it_was():
    graph = quantized()
    x = torch.randn(3, 8)
    before = copy.deepcopy(graph.model)(x=x)
    compute_costs(graph, [*SOFTWARE, "flops", "latency"])
    assert torch.equal(graph.model(x=x), before)
