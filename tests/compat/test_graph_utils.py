import torch
from passes.graphs import annotated, node_of

from chop.passes.graph.utils import (
    deepcopy_mase_graph,
    get_mase_op,
    get_mase_type,
    get_node_actual_target,
    get_parent_name,
)


def test_questions_about_a_node():
    graph = annotated("MLP")
    node = node_of(graph, "fc1")
    assert (get_mase_op(node), get_mase_type(node)) == ("linear", "module_related_func")
    assert get_node_actual_target(node) is graph.modules["fc1"]
    assert get_node_actual_target(node_of(graph, "flatten")) is torch.flatten
    assert get_node_actual_target(node_of(graph, "x")) == "x"


def test_a_method_is_that_of_the_tensor():
    graph = annotated("tuple output")
    node = next(n for n in graph.nodes if n.op == "call_method" and n.target == "chunk")
    assert get_node_actual_target(node) is torch.Tensor.chunk


def test_parent_names():
    assert get_parent_name("encoder.layer.0") == ("encoder.layer", "0")
    assert get_parent_name("fc") == ("", "fc")


def test_a_deep_copy_shares_nothing():
    graph = annotated("MLP")
    twin = deepcopy_mase_graph(graph)
    twin.model.fc1.weight.data.zero_()
    assert graph.model.fc1.weight.abs().sum() > 0
