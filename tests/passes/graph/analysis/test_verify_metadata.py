import copy

import pytest
import torch
from passes.graphs import BERT, CNN, annotated, graph_of, node_of
from torch import nn
from zoo import case

import chop.passes as passes
from chop.errors import GraphError


@pytest.mark.parametrize("name", [CNN, BERT])
def test_a_sound_graph_passes_and_the_difference_is_reported(name):
    graph = annotated(name)
    _, info = passes.verify_metadata_analysis_pass(graph, {"original": case(name).model})
    assert info == {"nodes": len(graph.nodes), "max_abs_difference": 0.0}


def test_other_inputs_than_the_traced_may_be_compared_on():
    given = case(BERT)
    facts = passes.verify(annotated(BERT), given.model, given.other_inputs)
    assert facts["max_abs_difference"] == 0.0


def _drop_meta(node):
    node.meta.pop("mase")


def _forget_results(node):
    node.meta["mase"].common.results = None


def _set_type(node):
    node.meta["mase"].common.mase_type = "func"


def _set_op(node):
    node.meta["mase"].common.mase_op = "conv2d"


def _break_link(node):
    node.meta["mase"].common.args["data_in_0"].source = node


def _break_operand_shape(node):
    node.meta["mase"].common.args["weight"].shape = [1]


def _drop_operand(node):
    del node.meta["mase"].common.args["bias"]


def _break_results(node):
    node.meta["mase"].common.results["data_out_0"].torch_dtype = torch.float16


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_drop_meta, "node 'fc1': not annotated. Run add_common_metadata"),
        (_forget_results, "node 'fc1': not annotated"),
        (_set_type, "node 'fc1': mase_type is 'func'. Allowed: module, module_related_func"),
        (_set_op, r"node 'fc1': annotated as conv2d \(module_related_func\), but it is linear"),
        (_break_link, "node 'fc1': args.data_in_0 comes from 'fc1' in the metadata and from 'fl"),
        (_break_operand_shape, r"node 'fc1': args.weight has shape \[1\], its source \[32, 16\]"),
        (_drop_operand, "node 'fc1': args are data_in_0, weight; the graph gives data_in_0, weig"),
        (_break_results, r"node 'fc1': results are data_out_0 \[2, 32\] torch.float16; a run gi"),
    ],
)
def test_each_kind_of_damage_is_found_and_the_node_named(damage, message):
    graph = annotated("MLP")
    damage(node_of(graph, "fc1"))
    with pytest.raises(GraphError, match=message):
        passes.verify(graph)


def test_a_graph_that_computes_something_else_is_found():
    original = case("MLP").model
    graph = annotated("MLP")
    graph.model.fc2.bias.data.add_(0.5)
    with pytest.raises(GraphError, match=r"differs from the original's by 0\.5.*tolerance 1e-05"):
        passes.verify(graph, original)


def test_a_graph_that_gives_nan_is_found():
    graph = annotated("MLP")
    graph.model.fc2.bias.data.fill_(float("nan"))
    with pytest.raises(GraphError, match="by nan"):
        passes.verify(graph, case("MLP").model)


def test_outputs_of_other_shapes_are_found():
    narrow = graph_of(nn.Linear(4, 2), torch.randn(3, 4))
    with pytest.raises(GraphError, match=r"the graph gives \[3, 2\]; the original gives \[3, 5\]"):
        passes.verify(narrow, nn.Linear(4, 5))


def test_two_graphs_may_be_compared():
    graph = annotated("MLP")
    assert passes.verify(graph, copy.deepcopy(graph))["max_abs_difference"] == 0.0
