"""Types of ONNX that torch lacks: results are right, or the reader refuses them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="needs masegraph[export]")
import onnx
from onnx import TensorProto, helper
from onnx_conformance import cases, outcome

from chop.export import from_onnx
from chop.export.onnx_import.onnx_file import TYPES
from chop.export.onnx_import.value_kinds import HELD_IN_WIDER

NODE_TESTS = (
    *(
        "test_castlike_FLOAT_to_INT4",
        "test_castlike_FLOAT_to_UINT4",
        "test_castlike_UINT4_to_UINT8",
    ),
    *("test_quantizelinear_uint4", "test_quantizelinear_int4", "test_quantizelinear_uint16"),
    *("test_quantizelinear_int16", "test_quantizelinear_blocked_asymmetric"),
    *("test_castlike_no_saturate_FLOAT_to_FLOAT8E4M3FN", "test_bitwise_not_4d"),
    *("test_cast_no_saturate_FLOAT16_to_FLOAT8E4M3FN", "test_bitwise_not_3d"),
    *("test_cast_no_saturate_FLOAT_to_FLOAT8E5M2", "test_quantizelinear_e4m3fn"),
    *("test_cumsum_1d_int32_exclusive", "test_range_int32_type_negative_delta"),
)


@pytest.mark.slow  # the sample of the conformance tests has some of them
def test_node_tests_of_narrow_types_pass() -> None:
    tests = [case for case in cases("node", NODE_TESTS) if case.name in NODE_TESTS]
    assert len(tests) == len(NODE_TESTS)
    outcomes = {case.name: outcome(case) for case in tests}
    assert {name: reason for name, reason in outcomes.items() if reason} == {}


ARITHMETIC = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "BitwiseNot": lambda a, b: ~a,
    "BitwiseXor": lambda a, b: a ^ b,
}


def extremes(kind: str) -> np.ndarray:
    """Numbers of the type, with its smallest and its largest."""
    low = 0 if kind.startswith("U") else -(1 << HELD_IN_WIDER[kind] - 1)
    return np.array([low, low + 1, low + (1 << HELD_IN_WIDER[kind]) - 1, 3], dtype=np.int64)


def wrapped(values: np.ndarray, kind: str) -> np.ndarray:
    low = int(extremes(kind)[0])
    return (values - low) % (1 << HELD_IN_WIDER[kind]) + low


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("kind", HELD_IN_WIDER)
def test_arithmetic_wraps_around_at_the_range_of_the_type(kind: str, name: str, tmp_path) -> None:
    number, a = TensorProto.DataType.Value(kind), extremes(kind)
    b = a[::-1].copy()
    inputs = ["a"] if name == "BitwiseNot" else ["a", "b"]
    node = helper.make_node(name, inputs, ["y"])
    graph = from_onnx(saved([node], inputs, number, tmp_path))
    operands = [torch.from_numpy(v) for v in (a, b)][: len(inputs)]
    result = graph.model(*(x.to(TYPES[kind]) for x in operands))
    assert np.array_equal(result.numpy(), wrapped(ARITHMETIC[name](a, b), kind))


@pytest.mark.parametrize("kind", HELD_IN_WIDER)
def test_a_cast_wraps_around_at_the_range_of_the_type(kind: str, tmp_path) -> None:
    number, values = TensorProto.DataType.Value(kind), np.array([-17, 15, 16, 65537, 2**32 + 5])
    casts = [
        helper.make_node("Cast", ["a"], ["narrow"], to=number),
        helper.make_node("Cast", ["narrow"], ["y"], to=TensorProto.INT64),
    ]
    graph = from_onnx(saved(casts, ["a"], TensorProto.INT64, tmp_path, size=5))
    assert np.array_equal(graph.model(torch.from_numpy(values)).numpy(), wrapped(values, kind))


def saved(nodes: list, inputs: list[str], number: int, folder: Path, size: int = 4) -> Path:
    values = [helper.make_tensor_value_info(n, number, [size]) for n in (*inputs, "y")]
    graph = helper.make_graph(nodes, "narrow", values[:-1], values[-1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"
