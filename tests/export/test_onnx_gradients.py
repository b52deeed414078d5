"""`Gradient` of ONNX files against the derivatives of torch."""

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", reason="needs masegraph[export]")
from onnx import TensorProto, helper  # noqa: E402
from onnx_conformance import cases, outcome  # noqa: E402

from chop.errors import ExportError  # noqa: E402
from chop.export import from_onnx  # noqa: E402
from chop.export.onnx_import.gradients import RULES, TRAINING  # noqa: E402

UNARY = {
    "Identity": lambda x: x,
    "Neg": torch.neg,
    "Exp": torch.exp,
    "Log": torch.log,
    "Sqrt": torch.sqrt,
    "Reciprocal": torch.reciprocal,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Relu": torch.relu,
}
BINARY = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "MatMul": torch.matmul,
}


def file_of(path, nodes, shapes, outputs):
    """Write a file whose nodes read the inputs of these shapes."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    domains = [helper.make_opsetid("", 17), helper.make_opsetid(TRAINING, 1)]
    graph = helper.make_graph(nodes, "g", inputs, results)
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=9), path)
    return path


def gradient(xs, y, outputs, inputs=None):
    return helper.make_node("Gradient", inputs or xs, outputs, domain=TRAINING, xs=xs, y=y)


def inputs_of(shapes):
    draw = torch.Generator().manual_seed(0)
    return {n: torch.rand(s, generator=draw) + 0.5 for n, s in shapes.items()}


def derivatives(function, values):
    """Return the derivatives of the sum of a function's results."""
    leaves = [v.clone().requires_grad_() for v in values.values()]
    return torch.autograd.grad(function(*leaves).sum(), leaves)


def assert_derived(path, function, shapes):
    values = inputs_of(shapes)
    with torch.no_grad():
        found = from_onnx(path, inputs=values).model(**values)
    ours = [found] if isinstance(found, torch.Tensor) else list(found.values())
    for a, b in zip(ours, derivatives(function, values), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_every_rule_has_a_case():
    assert {*UNARY, *BINARY} == set(RULES)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tensor(name, tmp_path):
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node(name, ["square"], ["y"]),
        gradient(["x"], "y", ["dx"]),
    ]
    path = file_of(tmp_path / "m.onnx", nodes, {"x": [2, 3]}, ["dx"])
    assert_derived(path, lambda x: UNARY[name](x * x), {"x": [2, 3]})


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tensors(name, tmp_path):
    shapes = {"a": [2, 3, 4], "b": [4, 5] if name == "MatMul" else [3, 1]}
    nodes = [helper.make_node(name, ["a", "b"], ["y"]), gradient(["a", "b"], "y", ["da", "db"])]
    path = file_of(tmp_path / "m.onnx", nodes, shapes, ["da", "db"])
    assert_derived(path, BINARY[name], shapes)


def test_the_tests_of_onnx_pass():
    found = {c.name: outcome(c) for c in cases("model", ["Gradient", f"{TRAINING}:Gradient"])}
    assert len(found) == 2 and set(found.values()) == {""}


def test_a_value_without_influence_has_zeros(tmp_path):
    nodes = [helper.make_node("Exp", ["a"], ["y"]), gradient(["a", "b"], "y", ["da", "db"])]
    shapes = {"a": [2], "b": [3]}
    path = file_of(tmp_path / "m.onnx", nodes, shapes, ["da", "db"])
    values = inputs_of(shapes)
    found = from_onnx(path, inputs=values).model(**values)
    assert torch.equal(found["db"], torch.zeros(3))
    assert torch.allclose(found["da"], values["a"].exp())


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [helper.make_node("Erf", ["x"], ["y"]), gradient(["x"], "y", ["d"])],
            "Erf of ai.onnx, opset 17. has no derivative. Known: Add, Cos, Div",
        ),
        (
            [helper.make_node("Exp", ["x"], ["y"]), gradient(["x"], "y", ["d"], ["y"])],
            r"its inputs are \['y'\]. Allowed: the values of its attributes xs and zs, \['x'\]",
        ),
        (
            [helper.make_node("MatMul", ["x", "x"], ["y"]), gradient(["x"], "y", ["d"])],
            "derivative of MatMul of a vector. Allowed: matrices",
        ),
    ],
)
def test_refusals_name_the_reason(nodes, message, tmp_path):
    path = file_of(tmp_path / "m.onnx", nodes, {"x": [3]}, ["d"])
    with pytest.raises(ExportError, match=message):
        from_onnx(path, inputs={"x": torch.from_numpy(np.ones(3, np.float32))})
