"""Sums with constants behind layers of an ONNX file become the layers' biases."""

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

from chop.export import from_onnx

RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(2, 3, 6, 5)).astype(np.float32)
KERNEL = RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)
MATRIX = RNG.normal(size=(90, 7)).astype(np.float32)


def read(path, nodes, **constants):
    """Return the graph of a file with these nodes, and its outputs by onnxruntime."""
    runtime = pytest.importorskip("onnxruntime")
    kind = onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", kind, ["batch", 3, 6, 5])]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], kind, None)]
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    (expected,) = runtime.InferenceSession(str(path)).run(None, {"x": IMAGE})
    return from_onnx(path, inputs={"x": torch.from_numpy(IMAGE)}), torch.from_numpy(expected)


def sums(graph):
    return [node for node in graph.fx_graph.nodes if "add" in node.name]


def check(graph, expected, count):
    with torch.no_grad():
        torch.testing.assert_close(graph.model(torch.from_numpy(IMAGE)), expected)
    assert len(sums(graph)) == count


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1)])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_number_per_channel_becomes_the_bias_of_a_convolution(shape, is_first, tmp_path):
    added = RNG.normal(size=shape).astype(np.float32)
    operands = ["b", "c"] if is_first else ["c", "b"]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Add", operands, ["y"]),
    ]
    graph, expected = read(tmp_path / "m.onnx", nodes, w=KERNEL, b=added)
    check(graph, expected, 0)
    (layer,) = [m for m in graph.model.modules() if isinstance(m, nn.Conv2d)]
    assert torch.equal(layer.bias.detach(), torch.from_numpy(added.reshape(-1)))


@pytest.mark.parametrize("shape", [(1,), (4, 4, 3), (1, 1, 3)])
def test_other_constants_stay_sums(shape, tmp_path):
    added = RNG.normal(size=shape).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Add", ["c", "b"], ["y"]),
    ]
    graph, expected = read(tmp_path / "m.onnx", nodes, w=KERNEL, b=added)
    check(graph, expected, 1)


def test_a_convolution_with_a_bias_or_a_second_reader_stays(tmp_path):
    added, bias = RNG.normal(size=(4, 1, 1)), RNG.normal(size=4)
    nodes = [
        helper.make_node("Conv", ["x", "w", "bias"], ["c"]),
        helper.make_node("Add", ["c", "b"], ["s"]),
        helper.make_node("Conv", ["x", "w"], ["d"]),
        helper.make_node("Add", ["d", "b"], ["t"]),
        helper.make_node("Mul", ["t", "d"], ["u"]),
        helper.make_node("Mul", ["s", "u"], ["y"]),
    ]
    constants = {"w": KERNEL, "b": added.astype(np.float32), "bias": bias.astype(np.float32)}
    graph, expected = read(tmp_path / "m.onnx", nodes, **constants)
    check(graph, expected, 2)


@pytest.mark.parametrize("shape", [(7,), (1, 7)])
def test_a_row_behind_a_flat_image_becomes_the_bias_of_a_linear_layer(shape, tmp_path):
    added = RNG.normal(size=shape).astype(np.float32)
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    graph, expected = read(tmp_path / "m.onnx", nodes, w=MATRIX, b=added)
    check(graph, expected, 0)
    (layer,) = [m for m in graph.model.modules() if isinstance(m, nn.Linear)]
    assert torch.equal(layer.bias.detach(), torch.from_numpy(added.reshape(-1)))
