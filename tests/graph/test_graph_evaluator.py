"""Evaluation: order, values, and the errors of inputs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from work import count_calls

from graph.backward import backward
from graph.compiler import compile_graph
from graph.errors import CycleError, InputError
from graph.evaluator import KERNELS, evaluate, topological_sort
from graph.ir import Graph, Node, Op
from graph.passes import optimize


def test_every_operation_has_a_kernel() -> None:
    assert set(Op) - set(KERNELS) == {Op.INPUT, Op.CONST}


def test_nodes_come_after_what_they_read_in_any_listing() -> None:
    g = Graph()
    x = g.add_input("x")
    y = (x * 2.0 + x).apply("tanh") * x
    shuffled = Graph.from_nodes(reversed(list(g)))
    place = {node.name: at for at, node in enumerate(topological_sort(shuffled))}
    assert all(place[i] < place[node.name] for node in g for i in node.inputs)
    assert evaluate(shuffled, {"x": 0.5})[y.name] == evaluate(g, {"x": 0.5})[y.name]


def test_a_cycle_is_named_in_the_direction_of_the_data() -> None:
    g = Graph()
    kind: dict[str, Any] = {"shape": (), "dtype": np.dtype("float64"), "graph": g}
    nodes = [
        Node("x", Op.INPUT, (), **kind),
        Node("a", Op.ADD, ("x", "c"), **kind),
        Node("b", Op.NEG, ("a",), **kind),
        Node("c", Op.NEG, ("b",), **kind),
        Node("end", Op.NEG, ("c",), **kind),
    ]
    message = r"the graph has a cycle: (a -> b -> c -> a|b -> c -> a -> b|c -> a -> b -> c)\."
    with pytest.raises(CycleError, match=message):
        evaluate(Graph.from_nodes(nodes), {"x": 1.0})


def test_only_what_the_outputs_need_is_computed() -> None:
    g = Graph()
    x, y = g.add_input("x"), g.add_input("y")
    double = x * 2.0
    assert double.apply("neg").name != (y * 2.0).name
    found = evaluate(g, {"x": 3.0}, [double])  # y is not needed, so it may be missing
    assert found == {"mul": np.float64(6.0)}


INPUT_MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"u": 1}, "input 'x' is missing; it needs a float64[2, 3]. Given: 'u'."),
    "none": ({}, "input 'x' is missing; it needs a float64[2, 3]. Given: nothing."),
    "shape": ({"x": np.ones(3)}, "input 'x' needs a float64[2, 3], got a float64[3]."),
    "dtype": (
        {"x": np.ones((2, 3), "float32")},
        "input 'x' needs a float64[2, 3], got a float32[2, 3].",
    ),
}


@pytest.mark.parametrize("case", INPUT_MISTAKES)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_wrong_inputs_are_named(case: str, is_compiled: bool) -> None:
    g = Graph()
    y = -g.add_input("x", (2, 3))
    inputs, words = INPUT_MISTAKES[case]
    with pytest.raises(InputError, match=re.escape(words)):
        compile_graph(g, [y])(inputs) if is_compiled else evaluate(g, inputs)


def test_class_numbers_out_of_range_are_refused() -> None:
    g = Graph()
    g.add_input("labels", (2,), "int64").apply("one_hot", classes=3)
    assert evaluate(g, {"labels": [0, 2]})["one_hot"].tolist() == [[1, 0, 0], [0, 0, 1]]
    for bad in (3, -1):
        with pytest.raises(InputError, match=f"class numbers lie in 0 to 2, got {bad}"):
            evaluate(g, {"labels": [0, bad]})


def test_extreme_values_follow_ieee_in_silence() -> None:
    g = Graph()
    x = g.add_input("x", (3,))
    for op in ("sigmoid", "log", "exp"):
        x.apply(op)
    with np.errstate(all="raise"):
        found = evaluate(g, {"x": [-1000.0, 0.0, 1000.0]})
    assert found["sigmoid"].tolist() == [0.0, 0.5, 1.0]
    assert found["exp"].tolist() == [0.0, 1.0, np.inf]
    assert np.isneginf(found["log"][1]) and np.isnan(found["log"][0])


def test_softmax_of_large_logits_is_finite() -> None:
    g = Graph()
    x = g.add_input("x", (1, 2))
    loss = x.apply("cross_entropy", x.apply("softmax"))
    both = evaluate(g, {"x": [[1e4, -1e4]]})
    assert both["softmax"].tolist() == [[1.0, 0.0]] and both[loss.name] == 0.0


def test_float32_stays_float32() -> None:
    g = Graph()
    x = g.add_input("x", (4,), "float32")
    y = ((x * 2.0).apply("sigmoid").apply("softmax") ** 2.0).apply("mean")
    larger, gradients = backward(g, y)
    for values in (
        evaluate(larger, {"x": np.ones(4, "float32")}),
        compile_graph(larger, [y, gradients["x"]])({"x": np.ones(4, "float32")}),
    ):
        assert {str(value.dtype) for value in values.values()} == {"float32"}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_values_have_the_inferred_type_walked_and_compiled(dtype: str) -> None:
    g = Graph()
    x = g.add_input("x", (2, 3), dtype)
    for op in ("neg", "relu", "step", "sum", "max", "transpose"):
        x.apply(op)
    x.apply("equal", x + x)
    if x.dtype.kind == "f":
        x.apply("mean")
        x.apply("cross_entropy", x)
    inputs = {"x": np.arange(6, dtype=dtype).reshape(2, 3)}
    for values in (evaluate(g, inputs), compile_graph(g, list(g))(inputs)):
        for node in g:
            assert (values[node.name].shape, values[node.name].dtype) == (node.shape, node.dtype)


def differentiated_chain(steps: int) -> None:
    """Build, differentiate and evaluate a chain of two nodes a step."""
    g = Graph()
    y = x = g.add_input("x")
    half = x * 0.5
    for _ in range(steps):
        y = (y + x) - half
    larger, gradients = backward(g, y)
    values = evaluate(larger, {"x": 3.0}, [y, gradients["x"]])
    assert len(g) > 2 * steps
    assert values[y.name] == 3.0 * (steps / 2 + 1)
    assert values[gradients["x"].name] == steps / 2 + 1


@pytest.mark.no_cover  # measuring would take longer than the test
@pytest.mark.slow
def test_a_long_chain_runs_and_differentiates_without_recursion() -> None:
    differentiated_chain(10_000)


@pytest.mark.no_cover  # calls are counted: nothing else may count them
def test_the_work_grows_as_the_chain_does() -> None:
    short, long = (count_calls(differentiated_chain, steps) for steps in (200, 800))
    assert long < 4.2 * short


@pytest.mark.no_cover  # measuring would take longer than the test
def test_a_chain_of_10_000_nodes_is_optimised_and_compiled_without_recursion() -> None:
    g = Graph()
    y = x = g.add_input("x", (3,))
    for _ in range(5_000):
        y = (y + x).apply("tanh")
    done = optimize(g, [y]).graph
    assert len(done) == 2  # the input and one fused node
    expected = evaluate(g, {"x": [0.1, 0.2, 0.3]}, [y])[y.name]
    assert np.array_equal(compile_graph(done, [y])({"x": [0.1, 0.2, 0.3]})[y.name], expected)
