"""Random graphs agree with torch in float64: values, gradients and second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from graph.backward import backward
from graph.compiler import compile_graph
from graph.evaluator import evaluate
from graph.ir import Node, Op
from graph.passes import PASSES, optimize

MakePair = Callable[..., Any]
SEEDS = range(30)
# Relative to the largest element: the two libraries add in different orders.
TOLERANCE = 1e-12


def assert_close(ours: np.ndarray, theirs: torch.Tensor) -> None:
    expected = theirs.detach().numpy()
    assert ours.shape == expected.shape and ours.dtype == expected.dtype
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    assert np.abs(ours - expected).max(initial=0.0) <= TOLERANCE * scale


def torch_gradients(
    loss: torch.Tensor, leaves: dict[str, torch.Tensor], names: list[str]
) -> dict[str, torch.Tensor]:
    found = torch.autograd.grad(
        loss, [leaves[name] for name in names], create_graph=True, allow_unused=True
    )
    zeros = {name: torch.zeros_like(leaves[name]) for name in names}
    return {n: zeros[n] if g is None else g for n, g in zip(names, found, strict=True)}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_node_has_the_value_torch_gives(random_pair: MakePair, seed: int) -> None:
    pair = random_pair(seed)
    values = evaluate(pair.graph, pair.values)
    for node, tensor in zip(pair.nodes, pair.tensors, strict=True):
        assert_close(values[node.name], tensor)


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_of_first_and_second_order_are_those_of_torch(
    random_pair: MakePair, seed: int
) -> None:
    check_gradients(random_pair(seed, steps=8))


def check_gradients(pair: Any) -> None:
    names = sorted(pair.values)
    graph, first = backward(pair.graph, pair.nodes[-1])
    slopes = torch_gradients(pair.tensors[-1], pair.leaves(), names)
    # A second scalar: the squares of all slopes, as a gradient penalty has them.
    penalty = sum(((graph.node(first[n]) ** 2.0).apply("sum") for n in names), graph.add_const(0.0))
    assert isinstance(penalty, Node)
    graph, second = backward(graph, penalty)
    torch_penalty = sum(((slopes[n] ** 2).sum() for n in names), torch.zeros(()))
    assert isinstance(torch_penalty, torch.Tensor)
    bends = torch_gradients(torch_penalty, pair.leaves(), names)
    values = evaluate(graph, pair.values)
    for name in names:
        assert_close(values[first[name].name], slopes[name])
        assert_close(values[second[name].name], bends[name])


@pytest.mark.share(3)
@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("seed", range(12))
def test_every_pass_preserves_values(random_pair: MakePair, seed: int, name: str) -> None:
    pair = random_pair(seed)
    graph, first = backward(pair.graph, pair.nodes[-1])
    outputs = [pair.nodes[-1].name, *(node.name for node in first.values())]
    before = evaluate(graph, pair.values, outputs)
    after = evaluate(PASSES[name](graph, outputs), pair.values, outputs)
    for output in outputs:
        assert_close(after[output], torch.from_numpy(np.array(before[output])))


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(25))
def test_optimised_and_compiled_graphs_agree_with_the_plain_walk(
    random_pair: MakePair, seed: int
) -> None:
    check_compiled(random_pair(seed))


def check_compiled(pair: Any) -> None:
    graph, first = backward(pair.graph, pair.nodes[-1])
    outputs = [pair.nodes[-1].name, *(node.name for node in first.values())]
    expected = evaluate(graph, pair.values, outputs)
    optimised = optimize(graph, outputs).graph
    assert len(optimised) < len(graph)
    plain, fast = compile_graph(graph, outputs), compile_graph(optimised, outputs)
    for _ in range(2):  # twice: buffers must not carry anything over
        for found in (
            evaluate(optimised, pair.values, outputs),
            plain(pair.values),
            fast(pair.values),
        ):
            for output in outputs:
                assert_close(found[output], torch.from_numpy(np.array(expected[output])))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_many_more_random_graphs_agree_in_everything(random_pair: MakePair, seed: int) -> None:
    check_gradients(random_pair(seed, steps=12))
    check_compiled(random_pair(seed, steps=24))


def test_random_graphs_reach_every_operation_of_the_ir(random_pair: MakePair) -> None:
    left = set(Op) - {Op.ONE_HOT}  # integers in: tested by the digits and by hand
    for seed in SEEDS:
        pair = random_pair(seed)
        graph, first = backward(pair.graph, pair.nodes[-1])
        optimised = optimize(graph, [*first.values()]).graph
        left -= {node.op for g in (graph, optimised) for node in g}
        if not left:
            return
    assert left == set()
