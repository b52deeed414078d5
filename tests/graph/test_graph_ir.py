"""The IR: construction, inference, printing, and every error of the two."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable

import numpy as np
import pytest

import graph.algebra
import graph.backward
import graph.compiler
import graph.errors
import graph.evaluator
import graph.ir
import graph.passes
from graph.errors import (
    DtypeError,
    GraphError,
    NameTakenError,
    ShapeError,
    UnknownNodeError,
    UnknownOpError,
)
from graph.ir import Graph, Node, Op
from graph.ops import OPS


def small() -> tuple[Graph, Node, Node]:
    g = Graph()
    return g, g.add_input("x", (2, 3)), g.add_input("b", (4,))


@pytest.mark.parametrize(
    "module",
    [
        graph.algebra,
        graph.backward,
        graph.compiler,
        graph.errors,
        graph.evaluator,
        graph.ir,
        graph.passes,
    ],
    ids=lambda module: module.__name__,
)
def test_examples_in_docstrings_are_true(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0 and result.failed == 0


def test_every_operation_but_input_and_const_has_a_spec() -> None:
    assert set(Op) - set(OPS) == {Op.INPUT, Op.CONST}


def test_add_op_wires_names_and_appends() -> None:
    g, x, _ = small()
    y = g.add_op(Op.MUL, [x, "x"], name="y")
    assert (y.op, y.inputs, y.shape, y.dtype) == (Op.MUL, ("x", "x"), (2, 3), np.dtype("float64"))
    assert list(g)[-1] is y and g.users()["x"] == ["y", "y"]


SHAPES: dict[str, tuple[Callable[[Node], Node], tuple[int, ...]]] = {
    "broadcasting add": (lambda x: x + x.graph.add_const(np.ones((5, 1, 1))), (5, 2, 3)),
    "number on the left": (lambda x: 1.0 / (2.0 - 3.0 * (4.0 + x)), (2, 3)),
    "matmul": (lambda x: x @ x.apply("transpose"), (2, 2)),
    "stacked matmul": (
        lambda x: x.apply("broadcast", shape=(7, 2, 3)) @ x.apply("transpose"),
        (7, 2, 2),
    ),
    "negative permutation": (lambda x: x.apply("transpose", axes=(-1, 0)), (3, 2)),
    "reshape with a gap": (lambda x: x.apply("reshape", shape=(-1, 1)), (6, 1)),
    "reshape to a number": (lambda x: x.apply("sum").apply("reshape", shape=()), ()),
    "sum of all": (lambda x: x.apply("sum"), ()),
    "sum of the last": (lambda x: x.apply("sum", axis=-1), (2,)),
    "max that keeps": (lambda x: x.apply("max", axis=(0, 1), keepdims=True), (1, 1)),
    "softmax": (lambda x: x.apply("softmax"), (2, 3)),
    "cross-entropy": (lambda x: x.apply("cross_entropy", x), ()),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_are_inferred(case: str) -> None:
    build, shape = SHAPES[case]
    assert build(small()[1]).shape == shape


def test_dtypes_are_inferred() -> None:
    g = Graph()
    x = g.add_input("x", (2,), "float32")
    labels = g.add_input("labels", (2,), "int64")
    assert (x * 2).dtype == "float32"  # numbers take the dtype of their partner
    assert x.apply("cast", dtype="float64").dtype == "float64"
    one_hot = labels.apply("one_hot", classes=3, dtype="float32")
    assert (one_hot.type, (labels + labels).type) == ("float32[2, 3]", "int64[2]")
    assert g.add_const(2).dtype == "float64" and g.add_const(np.arange(3)).dtype == "int64"


Mistake = Callable[[Graph, Node, Node], object]
# Each mistake with the kind of error and its words.
MISTAKES: dict[str, tuple[Mistake, type[GraphError], str]] = {
    "name twice": (
        lambda g, x, b: g.add_input("x"),
        NameTakenError,
        "node 'x': the graph already has a node of that name.",
    ),
    "unknown node": (
        lambda g, x, b: g.add_op("neg", ["bb"]),
        UnknownNodeError,
        "no node is called 'bb'. Did you mean 'b'? Known: b, x.",
    ),
    "unknown op": (
        lambda g, x, b: x.apply("sofmax"),
        UnknownOpError,
        "unknown op 'sofmax'. Did you mean 'softmax'?",
    ),
    "input by add_op": (
        lambda g, x, b: g.add_op(Op.CONST, []),
        UnknownOpError,
        "node 'const' (const): add_op makes operations only; use add_const.",
    ),
    "arity": (
        lambda g, x, b: g.add_op("add", [x]),
        ShapeError,
        "node 'add' (add): takes 2 inputs, got 1.",
    ),
    "unknown attribute": (
        lambda g, x, b: x.apply("sum", axes=0),
        UnknownOpError,
        "node 'sum' (sum): unknown attribute 'axes'. Did you mean 'axis'? Known: axis, keepdims.",
    ),
    "no broadcast": (
        lambda g, x, b: x + b,
        ShapeError,
        "node 'add' (add): shapes (2, 3) of 'x' and (4,) of 'b' do not broadcast together.",
    ),
    "inner sizes": (
        lambda g, x, b: x @ x,
        ShapeError,
        "node 'matmul' (matmul): inner sizes 3 and 2 differ in the shapes (2, 3) of 'x' and "
        "(2, 3) of 'x'.",
    ),
    "vector in matmul": (
        lambda g, x, b: x @ b,
        ShapeError,
        "node 'matmul' (matmul): needs two matrices (or stacks of them), got (2, 3) of 'x' and "
        "(4,) of 'b'.",
    ),
    "permutation": (
        lambda g, x, b: x.apply("transpose", axes=(0, 0)),
        ShapeError,
        "node 'transpose' (transpose): axes (0, 0) are no permutation of the 2 axes of (2, 3) "
        "of 'x'.",
    ),
    "reshape": (
        lambda g, x, b: x.apply("reshape", shape=(4, -1)),
        ShapeError,
        "node 'reshape' (reshape): shape (2, 3) of 'x' cannot be reshaped to (4, -1).",
    ),
    "two gaps": (
        lambda g, x, b: x.apply("reshape", shape=(-1, -1)),
        ShapeError,
        "node 'reshape' (reshape): shape (2, 3) of 'x' cannot be reshaped to (-1, -1).",
    ),
    "broadcast": (
        lambda g, x, b: b.apply("broadcast", shape=(2, 3)),
        ShapeError,
        "node 'broadcast' (broadcast): shape (4,) of 'b' cannot be broadcast to (2, 3).",
    ),
    "axis": (
        lambda g, x, b: x.apply("sum", axis=2),
        ShapeError,
        "node 'sum' (sum): axis 2 is out of range for the shape (2, 3) of 'x'.",
    ),
    "two axes": (
        lambda g, x, b: x.apply("softmax", axis=(0, 1)),
        ShapeError,
        "node 'softmax' (softmax): needs one axis, got (0, 1) for (2, 3) of 'x'.",
    ),
    "cross-entropy": (
        lambda g, x, b: x.apply("cross_entropy", b),
        ShapeError,
        "node 'cross_entropy' (cross_entropy): needs logits and class probabilities of one shape, "
        "got (2, 3) of 'x' and (4,) of 'b'; turn class numbers into rows with one_hot.",
    ),
    "float labels": (
        lambda g, x, b: b.apply("one_hot", classes=3),
        DtypeError,
        "node 'one_hot' (one_hot): needs an integer dtype, got float64 of 'b'.",
    ),
    "no classes": (
        lambda g, x, b: g.add_input("i", (2,), "int64").apply("one_hot"),
        ShapeError,
        "node 'one_hot' (one_hot): classes must be at least 1, got 0.",
    ),
    "integer exp": (
        lambda g, x, b: g.add_input("i", (2,), "int64").apply("exp"),
        DtypeError,
        "node 'exp' (exp): needs a floating dtype, got int64 of 'i'; add a cast.",
    ),
    "mixed dtypes": (
        lambda g, x, b: g.add_input("f", (2, 3), "float32") + x,
        DtypeError,
        "node 'add' (add): dtypes float32 of 'f' and float64 of 'x' differ; add a cast.",
    ),
    "unknown dtype": (
        lambda g, x, b: g.add_input("h", (2,), "float16"),
        DtypeError,
        "node 'h' (input): dtype must be one of float32, float64, int32, int64, got float16.",
    ),
    "boolean constant": (
        lambda g, x, b: g.add_const(np.array([True])),
        DtypeError,
        "node 'const' (const): dtype must be one of float32, float64, int32, int64, got bool.",
    ),
    "empty input": (
        lambda g, x, b: g.add_input("e", (2, 0)),
        ShapeError,
        "node 'e' (input): every size must be at least 1, got (2, 0).",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_refused_by_name_with_shapes_and_remedy(case: str) -> None:
    mistake, kind, words = MISTAKES[case]
    with pytest.raises(kind, match=re.escape(words)) as caught:
        mistake(*small())
    assert isinstance(caught.value, GraphError)


def test_a_refused_node_leaves_the_graph_as_it_was() -> None:
    g, x, b = small()
    with pytest.raises(ShapeError):
        g.add_op("add", [x, b])
    assert list(g.nodes) == ["x", "b"]


def test_fresh_names_skip_names_given_by_hand() -> None:
    _, x, _ = small()
    x.apply("neg", name="neg_1")
    assert [(-x).name for _ in range(3)] == ["neg", "neg_2", "neg_3"]


def test_constants_cannot_be_changed_from_outside() -> None:
    source = np.ones(2)
    node = Graph().add_const(source)
    source[0] = 5.0
    assert node.value is not None and node.value.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        node.value[0] = 2.0


def test_copies_grow_apart() -> None:
    g, _, _ = small()
    other = g.copy()
    other.add_op("neg", ["x"])
    assert len(g) == 2 and len(other) == 3
    assert other.node("x").graph is other


def test_an_alias_answers_for_its_node_and_keeps_its_name_taken() -> None:
    g, x, _ = small()
    g.alias("same", "x")
    assert g.node("same") is x and "same" in g
    assert "same = x     (alias)" in str(g)
    with pytest.raises(NameTakenError):
        g.add_input("same")
    with pytest.raises(
        NameTakenError, match="alias 'x': the graph already has a node of that name"
    ):
        g.alias("x", "b")


def test_from_nodes_needs_every_input() -> None:
    _, x, _ = small()
    y = -x
    with pytest.raises(UnknownNodeError, match="no node is called 'x'"):
        Graph.from_nodes([y])


def test_drawings_show_every_node() -> None:
    g, x, _ = small()
    (x * 2.0).apply("sum")
    names = [
        box.get("data-name") for box in ET.fromstring(g.to_svg("t")).findall(".//*[@class='box']")
    ]
    assert names == list(g.nodes)
    assert '"x" -> "mul";' in g.to_dot() and repr(g) == "<Graph of 5 nodes>"


def test_the_ir_needs_no_picture_to_be_imported() -> None:
    code = "import sys, graph.ir; print(sorted({'graph.drawing', 'graph.draw'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
