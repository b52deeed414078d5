"""The compiled function: memory safety, reuse, and blocks."""

from __future__ import annotations

import numpy as np
import pytest

import graph.compiler as compiler
from graph.compiler import compile_graph
from graph.evaluator import evaluate
from graph.ir import Graph, Node, Op
from graph.passes import optimize


def test_a_long_chain_lives_in_one_buffer() -> None:
    g = Graph()
    y: Node = g.add_input("x", (100,))
    for _ in range(50):
        y = (y + 1.0).apply("tanh")
    assert compile_graph(g, [y]).buffer_bytes == 100 * 8


def test_a_buffer_with_readers_left_is_not_overwritten() -> None:
    g = Graph()
    x = g.add_input("x", (3, 3))
    early = x * 2.0
    middle = early.apply("transpose")  # a look at the memory of early
    for _ in range(4):
        early = early.apply("tanh")
    y = early + middle
    value = np.arange(9.0).reshape(3, 3)
    assert np.array_equal(
        compile_graph(g, [y])({"x": value})[y.name], evaluate(g, {"x": value})[y.name]
    )


def test_outputs_are_new_arrays_on_every_call() -> None:
    g = Graph()
    x, c = g.add_input("x", (2, 2)), g.add_const(np.ones((2, 2)))
    hidden = x + 1.0
    outputs = [x, c, hidden.apply("transpose"), hidden.apply("reshape", shape=(4,)), hidden * 2.0]
    run = compile_graph(g, outputs)
    value = np.zeros((2, 2))
    first = run({"x": value})
    kept = {name: array.copy() for name, array in first.items()}
    second = run({"x": value + 5.0})
    arrays = [*first.values(), *second.values(), value]
    for at, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[:at])
    assert all(np.array_equal(first[name], kept[name]) for name in kept)
    assert all(array.flags.writeable for array in arrays)


def test_reshaping_a_transposed_buffer_is_right() -> None:
    g = Graph()
    y = (g.add_input("x", (2, 3)) * 2.0).apply("transpose").apply("reshape", shape=(6,)) + 0.5
    value = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(compile_graph(g, [y])({"x": value})[y.name], value.T.ravel() * 2 + 0.5)


@pytest.mark.parametrize("shape", [(), (5,), (1000,), (7, 300), (300, 7), (3, 1, 50), (1, 2000)])
def test_blocks_give_what_the_whole_gives(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "BLOCK", 128)
    g = Graph()
    x, row = g.add_input("x", shape), g.add_input("row", shape[-1:])
    first = g.add_input("first", (1, *shape[1:]) if shape else ())
    y = ((x * row + first).apply("sigmoid") * (x - row) + x.apply("relu")).apply("tanh")
    done = optimize(g, [y]).graph
    assert done.node(y).op is Op.FUSED
    rng = np.random.default_rng(0)
    inputs = {node.name: np.asarray(rng.normal(size=node.shape)) for node in (x, row, first)}
    expected = evaluate(g, inputs, [y])[y.name]
    found = compile_graph(done, [y])(inputs)[y.name]
    # Vector and scalar loops of numpy's functions may differ in the last digit.
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_the_same_output_may_be_asked_for_twice_and_by_its_alias() -> None:
    g = Graph()
    x = g.add_input("x")
    y = (x * 1.0).apply("neg", name="y")
    z = x.apply("neg", name="z")
    done = optimize(g, [y, z]).graph
    assert len(done) == 2
    assert compile_graph(done, ["y", "z", "y"])({"x": 2.0}) == {"y": -2.0, "z": -2.0}
