"""Gradients: rules, special points, and errors. Agreement with torch at large is tested apart."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from graph.backward import RULES, backward
from graph.errors import GradientError
from graph.evaluator import evaluate
from graph.ir import Graph, Node, Op
from graph.ops import OPS
from graph.passes import optimize


def gradient(build: Callable[[Node], Node], x: object) -> np.ndarray:
    g = Graph()
    value = np.asarray(x, dtype=float)
    node = g.add_input("x", value.shape)
    larger, found = backward(g, build(node).apply("sum"))
    return evaluate(larger, {"x": value})[found["x"].name]


def test_every_operation_but_fused_has_a_rule_per_input() -> None:
    flat = {Op.INPUT, Op.CONST, Op.STEP, Op.EQUAL, Op.ONE_HOT}
    assert set(Op) - set(RULES) == {Op.FUSED}
    assert {op for op, rules in RULES.items() if not rules} == flat
    for op in set(RULES) - flat:
        assert len(RULES[op]) == OPS[op].arity


def test_the_argument_is_not_changed() -> None:
    g = Graph()
    loss = g.add_input("x") ** 2.0
    before = str(g)
    backward(g, loss)
    assert str(g) == before


def test_a_value_read_often_adds_up() -> None:
    assert gradient(lambda x: x * x + x + x, [3.0]) == [8.0]


def test_inputs_the_loss_does_not_read_have_gradient_zero() -> None:
    g = Graph()
    x, y = g.add_input("x"), g.add_input("y", (2, 2))
    larger, found = backward(g, x * 2.0)
    assert evaluate(larger, {"x": 1.0, "y": np.ones((2, 2))})[found["y"].name].tolist() == [
        [0.0, 0.0],
        [0.0, 0.0],
    ]
    assert y.name in found


def test_gradient_for_an_inner_node_and_for_chosen_names() -> None:
    g = Graph()
    x, w = g.add_input("x"), g.add_input("w")
    h = x * w
    larger, found = backward(g, h * h, wrt=[h, "w"])
    values = evaluate(larger, {"x": 2.0, "w": 5.0})
    assert {name: float(values[node.name]) for name, node in found.items()} == {"mul": 20, "w": 40}


def test_the_loss_itself_has_gradient_one() -> None:
    g = Graph()
    x = g.add_input("x")
    larger, found = backward(g, x)
    assert evaluate(larger, {"x": 7.0})[found["x"].name] == 1.0


def test_relu_is_flat_at_zero_and_max_shares_ties() -> None:
    assert gradient(lambda x: x.apply("relu"), [-1.0, 0.0, 2.0]).tolist() == [0.0, 0.0, 1.0]
    assert gradient(lambda x: x.apply("max"), [2.0, 1.0, 2.0]).tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0])
def test_known_powers_have_torchs_slope_at_zero_in_both_orders(exponent: float) -> None:
    g = Graph()
    x = g.add_input("x")
    first, slope = backward(g, x**exponent)
    second, bend = backward(first, slope["x"])
    values = evaluate(second, {"x": 0.0})
    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(t**exponent, t, create_graph=True)
    (curve,) = torch.autograd.grad(expected, t, allow_unused=True) if exponent > 0 else (None,)
    assert values[slope["x"].name] == float(expected.detach())
    assert values[bend["x"].name] == (0.0 if curve is None else float(curve))


def test_no_gradient_passes_through_integers_and_steps() -> None:
    assert gradient(lambda x: x.apply("step") * 3.0, [1.0]).tolist() == [0.0]
    through = gradient(lambda x: x.apply("cast", dtype="int64").apply("cast") * x, [2.5])
    assert through.tolist() == [2.0]


def test_gradient_comes_back_in_the_dtype_of_the_input() -> None:
    g = Graph()
    x = g.add_input("x", (2,), "float32")
    _, found = backward(g, (x.apply("cast", dtype="float64") * 3.0).apply("sum"))
    assert found["x"].dtype == "float32"


def test_third_derivative_is_right() -> None:
    g = Graph()
    node: Node = g.add_input("x") ** 4.0
    for _ in range(3):
        g, found = backward(g, node)
        node = found["x"]
    assert evaluate(g, {"x": 2.0})[node.name] == 48.0


def test_a_loss_that_is_no_number_is_refused() -> None:
    g = Graph()
    y = g.add_input("x", (2, 3)) * 2.0
    words = "node 'mul' (mul): the loss must be one floating number, got float64[2, 3]; reduce"
    with pytest.raises(GradientError, match=re.escape(words)):
        backward(g, y)


def test_fused_nodes_are_refused_with_the_remedy() -> None:
    g = Graph()
    y = (g.add_input("x") + 1.0).apply("tanh")
    words = r"node 'tanh' \(fused\): fused nodes have no gradient; call backward first"
    with pytest.raises(GradientError, match=words):
        backward(optimize(g, [y]).graph, y)


def test_a_gradient_by_integers_is_refused() -> None:
    g = Graph()
    x, labels = g.add_input("x"), g.add_input("labels", (2,), "int64")
    words = r"node 'labels' \(input\): only floating nodes have a gradient, this is int64\[2\]"
    with pytest.raises(GradientError, match=words):
        backward(g, x * 2.0, wrt=[labels])


def test_a_gradient_by_an_alias_answers_to_that_name() -> None:
    g = Graph()
    x = g.add_input("x")
    g.alias("also_x", "x")
    _, found = backward(g, x * 2.0, wrt=["also_x"])
    assert list(found) == ["also_x"]
