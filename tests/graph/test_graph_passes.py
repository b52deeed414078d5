"""The passes one by one: what each removes, what it must leave alone, and the laws themselves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graph.algebra import LAWS, STRUCTURE, Term, parse_law
from graph.backward import backward
from graph.errors import GraphError
from graph.evaluator import evaluate
from graph.ir import Graph, Node, Op
from graph.passes import (
    PASSES,
    common_subexpression_elimination,
    constant_fold,
    dead_code_elimination,
    fuse_elementwise,
    optimize,
    simplify_algebra,
)


def test_constant_expressions_collapse_under_their_own_names() -> None:
    g = Graph()
    x = g.add_input("x")
    three = (g.add_const(1.0) + 2.0).apply("neg", name="three")
    y = x * three
    folded = constant_fold(g)
    assert folded.node("three").op is Op.CONST and folded.node("three").value == -3.0
    assert folded.node(y).inputs == ("x", "three")
    assert len(folded) == len(g)  # the parts stay, dead, for elimination to sweep
    assert len(dead_code_elimination(folded, [y])) == 3


def test_folding_does_not_fill_memory_with_broadcasts() -> None:
    g = Graph()
    y = g.add_const(2.0).apply("broadcast", shape=(1000, 1000)) * 3.0
    done = optimize(g, [y]).graph
    assert sum(node.value.nbytes for node in done if node.value is not None) == 8
    assert done.node(y).op is Op.BROADCAST
    assert (evaluate(done, {}, [y])[y.name] == 6.0).all()


def test_dead_nodes_go_and_unread_inputs_with_them() -> None:
    g = Graph()
    x, unread = g.add_input("x"), g.add_input("unread")
    y = x * 2.0
    dead = (unread + y).apply("exp")
    kept = dead_code_elimination(g, [y])
    assert set(kept.nodes) == {"x", "const", y.name}
    assert dead.name in g  # the argument is as it was
    assert evaluate(kept, {"x": 1.0, "unread": 1.0}, [y])[y.name] == 2.0


def test_elimination_of_a_living_graph_changes_nothing() -> None:
    g = Graph()
    y = g.add_input("x") * 2.0
    assert str(dead_code_elimination(g, [y])) == str(g)


def test_equal_expressions_become_one_even_with_operands_exchanged() -> None:
    g = Graph()
    a, b = g.add_input("a"), g.add_input("b")
    y = (a * b).apply("exp") + (b * a).apply("exp")
    merged = dead_code_elimination(common_subexpression_elimination(g), [y])
    assert [node.op for node in merged] == [Op.INPUT, Op.INPUT, Op.MUL, Op.EXP, Op.ADD]
    different = (a - b) * (b - a)
    again = dead_code_elimination(common_subexpression_elimination(g), [different])
    assert len(again) == 5


def test_expressions_that_differ_in_an_attribute_stay_two() -> None:
    g = Graph()
    x = g.add_input("x", (3, 3))
    y = x.apply("sum", axis=0) + x.apply("sum", axis=1)
    assert len(dead_code_elimination(common_subexpression_elimination(g), [y])) == 4


def test_equal_constants_become_one_but_not_across_dtypes() -> None:
    g = Graph()
    one, also = g.add_const(1.0), g.add_const(1.0)
    other = g.add_const(1.0, dtype="float32")
    merged = common_subexpression_elimination(g)
    assert merged.node(also) is merged.node(one) is not merged.node(other)


def test_inputs_are_never_merged() -> None:
    g = Graph()
    y = g.add_input("a") + g.add_input("b")
    assert len(optimize(g, [y]).graph) == 3


LAW_LINES = [line.strip() for line in LAWS.strip().splitlines()]


def node_of(term: Term | str | float, g: Graph) -> Node:
    if isinstance(term, Term):
        return g.add_op(term.op, [node_of(operand, g) for operand in term.operands])
    return g.node(term) if isinstance(term, str) else g.add_const(term)


@pytest.mark.parametrize("line", LAW_LINES)
def test_each_law_is_exact_for_all_kinds_of_floats_and_is_used(line: str) -> None:
    g = Graph()
    x, y = (side.ravel() for side in np.meshgrid(SPECIAL, SPECIAL))
    for name in "xy":
        g.add_input(name, x.shape)
    left, right = (node_of(term, g) for term in parse_law(line))
    values = evaluate(g, {"x": x, "y": y})
    assert np.array_equal(values[left.name], values[right.name], equal_nan=True)
    used = simplify_algebra(g).node(left)
    assert used.name != left.name or used.op is not left.op or used.inputs != left.inputs


SPECIAL = np.array([0.0, -0.0, 1.0, -2.5, 1e-300, 1e300, np.inf, -np.inf, np.nan])


def test_laws_leave_a_constant_that_broadcasts() -> None:
    g = Graph()
    y = g.add_input("x", (3,)) + g.add_const(np.zeros((2, 3)))
    done = optimize(g, [y]).graph
    assert done.node(y).op is Op.ADD and done.node(y).shape == (2, 3)


def letters_of(term: Term | str | float) -> set[str]:
    if isinstance(term, Term):
        return set().union(*map(letters_of, term.operands))
    return {term} if isinstance(term, str) else set()


@pytest.mark.parametrize("line", LAW_LINES)
def test_both_sides_of_a_law_have_the_same_letters(line: str) -> None:
    left, right = parse_law(line)
    assert letters_of(left) == letters_of(right)


def test_a_law_with_anything_else_in_it_is_refused() -> None:
    with pytest.raises(GraphError, match=r"letters, numbers and operations, not 'x\[0\]'"):
        parse_law("x[0] -> x")


def _with_labels(x: Node) -> Node:
    labels = x.graph.add_input("labels", (2,), "int64")
    return labels.apply("one_hot", classes=3).apply("sum", axis=-1, keepdims=True) * x


# name of the rule -> a graph it applies to, and the operations left in the end (inputs apart).
STRUCTURAL: dict[str, tuple[Callable[[Node], Node], list[str]]] = {
    "_same_shape": (lambda x: x.apply("reshape", shape=(2, 3)).apply("cast"), []),
    "_twice": (
        lambda x: x.apply("reshape", shape=(6,)).apply("reshape", shape=(3, 2)),
        ["reshape"],
    ),
    "_transpose_twice": (lambda x: x.apply("transpose").apply("transpose"), []),
    "_transpose_nothing": (lambda x: x.apply("transpose", axes=(0, 1)), []),
    "_reduce_nothing": (
        lambda x: x.apply("reshape", shape=(2, 1, 3)).apply("sum", axis=1).apply("mean", axis=()),
        [],
    ),
    "_broadcast_last": (
        lambda x: x * x.apply("sum").apply("broadcast", shape=(2, 3)),
        ["sum", "mul"],
    ),
    "_divide_by_power_of_two": (lambda x: x / 8.0, ["const", "mul"]),
    "_sum_one_hot": (_with_labels, []),
    "_expand_softmax": (lambda x: x.apply("softmax"), ["max", "sub", "exp", "sum", "div"]),
    "_expand_log_softmax": (
        lambda x: x.apply("log_softmax"),
        ["max", "sub", "exp", "sum", "log", "sub"],
    ),
    "_expand_cross_entropy": (
        lambda x: x.apply("cross_entropy", x),
        ["max", "sub", "exp", "sum", "log", "sub", "mul", "sum", "mean", "neg"],
    ),
}


@pytest.mark.parametrize("rule", STRUCTURAL)
def test_each_structural_rule_rewrites_and_keeps_the_value(rule: str) -> None:
    build, expected = STRUCTURAL[rule]
    g = Graph()
    y = build(g.add_input("x", (2, 3)))
    inputs = {"x": np.arange(6.0).reshape(2, 3), "labels": [0, 2]}
    done = optimize(g, [y], finish=()).graph
    assert [node.op.value for node in done if node.op is not Op.INPUT] == expected
    before, after = (evaluate(graph, inputs, [y])[y.name] for graph in (g, done))
    np.testing.assert_allclose(after, before, rtol=1e-15)


def test_the_structural_cases_cover_the_table() -> None:
    names = {rule.__name__ for rules in STRUCTURE.values() for rule in rules}
    assert names == set(STRUCTURAL)
    assert all(rule.__doc__ for rules in STRUCTURE.values() for rule in rules)


def test_division_by_other_numbers_stays_division() -> None:
    g = Graph()
    x = g.add_input("x")
    for divisor in (3.0, 0.0, 2.0**-1060):
        assert optimize(g, [y := x / divisor]).graph.node(y).op is Op.DIV


def test_fusion_takes_whole_runs_and_stops_at_outputs_and_outside_readers() -> None:
    g = Graph()
    x = g.add_input("x", (4,))
    shown = (x * x).apply("exp")
    y = (shown + x).apply("tanh") * (shown + x)
    done = dead_code_elimination(fuse_elementwise(g, [y, shown]), [y, shown])
    fused = [node.name for node in done if node.op is Op.FUSED]
    assert fused == [shown.name, y.name]
    assert "steps=mul exp" in str(done)


def test_fusion_stops_where_the_shape_changes() -> None:
    g = Graph()
    y = (g.add_input("b", (3,)).apply("exp") + g.add_input("x", (2, 3))).apply("tanh")
    done = optimize(g, [y]).graph
    assert [node.op.value for node in done if node.op is not Op.INPUT] == ["exp", "fused"]


def test_order_matters_folding_first_leaves_less() -> None:
    g = Graph()
    y = g.add_input("x") + (g.add_const(1.0) + 2.0)
    folded_first = dead_code_elimination(constant_fold(g), [y])
    swept_first = constant_fold(dead_code_elimination(g, [y]))
    assert (len(folded_first), len(swept_first)) == (3, 5)


def test_optimising_twice_changes_nothing_more() -> None:
    g = Graph()
    x = g.add_input("x", (4, 3))
    loss = (x.apply("softmax") * x).apply("mean")
    larger, gradients = backward(g, loss)
    outputs = [loss, gradients["x"]]
    once = optimize(larger, outputs).graph
    assert str(optimize(once, outputs).graph) == str(once)


def test_records_tell_the_counts_of_every_pass_in_order() -> None:
    g = Graph()
    y = g.add_input("x") * (g.add_const(1.0) * 1.0)
    done = optimize(g, [y])
    assert [record.name for record in done.records[:4]] == list(PASSES)[:4]
    assert done.records[0].before == len(g) and done.records[-1].after == len(done.graph) == 1
    for first, second in zip(done.records, done.records[1:], strict=False):
        assert first.after == second.before
    assert "constant_fold" in str(done)


def test_unknown_passes_are_refused() -> None:
    with pytest.raises(
        GraphError, match=r"unknown pass 'constant_fodl'\. Did you mean 'constant_fold'"
    ):
        optimize(Graph(), [], ["constant_fodl"])


def test_an_output_that_turns_out_to_be_an_input_still_answers_to_its_name() -> None:
    g = Graph()
    y = (g.add_input("x") * 1.0).apply("add", 0.0, name="y")
    done = optimize(g, [y]).graph
    assert len(done) == 1 and evaluate(done, {"x": 4.0}, ["y"]) == {"y": 4.0}
