"""Train a two-layer network on scikit-learn's digits with the package `graph` alone.

The whole training step (loss, gradients and the update of every weight) is one graph. It is
built once, optimised, compiled, and then called for every batch.

    python examples/digits_graph.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from graph.backward import backward
from graph.compiler import compile_graph
from graph.evaluator import evaluate
from graph.ir import Graph, Node
from graph.passes import optimize

PIXELS, HIDDEN, CLASSES = 64, 64, 10
Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True)
class Data:
    """Images as rows of 64 pixels in 0..1, and the digit each shows."""

    train_images: np.ndarray[Any, np.dtype[Any]]
    train_labels: np.ndarray[Any, np.dtype[Any]]
    test_images: np.ndarray[Any, np.dtype[Any]]
    test_labels: np.ndarray[Any, np.dtype[Any]]


def load(seed: int = 0) -> Data:
    """The 1797 digits, shuffled; every fifth is kept for the test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    images, labels = images[order] / 16.0, labels[order].astype(np.int64)
    is_test = np.arange(len(labels)) % 5 == 0
    return Data(images[~is_test], labels[~is_test], images[is_test], labels[is_test])


def initial_weights(seed: int = 0) -> Arrays:
    """He initialisation: variance 2 / fan-in keeps signals through relu at their size."""
    rng = np.random.default_rng(seed)
    sizes = [(PIXELS, HIDDEN), (HIDDEN, CLASSES)]
    weights: Arrays = {}
    for number, (fan_in, fan_out) in enumerate(sizes, start=1):
        weights[f"w{number}"] = rng.normal(0, np.sqrt(2 / fan_in), (fan_in, fan_out))
        weights[f"b{number}"] = np.zeros(fan_out)
    return weights


def build_logits(graph: Graph, batch: int) -> Node:
    """images -> relu(images @ w1 + b1) @ w2 + b2, with the weights as inputs."""
    x = graph.add_input("images", (batch, PIXELS))
    for number, (fan_in, fan_out) in enumerate([(PIXELS, HIDDEN), (HIDDEN, CLASSES)], start=1):
        w = graph.add_input(f"w{number}", (fan_in, fan_out))
        b = graph.add_input(f"b{number}", (fan_out,))
        x = x @ w + b
        x = x.apply("relu") if number == 1 else x
    return x


@dataclass(frozen=True)
class Step:
    """A training step as a graph: which nodes hold the loss and the new weights."""

    graph: Graph
    loss: str
    updated: Mapping[str, str]  # weight -> the node that is its new value

    @property
    def outputs(self) -> list[str]:
        """All that one step computes."""
        return [self.loss, *self.updated.values()]


def build_step(batch: int, rate: float = 0.5) -> Step:
    """Loss, gradients and gradient descent in one graph."""
    graph = Graph()
    logits = build_logits(graph, batch)
    labels = graph.add_input("labels", (batch,), "int64")
    target = labels.apply("one_hot", classes=CLASSES)
    loss = logits.apply("cross_entropy", target, name="loss")
    weights = ("w1", "b1", "w2", "b2")
    graph, gradients = backward(graph, loss, wrt=weights)
    updated = {
        name: graph.node(name).apply("sub", gradients[name] * rate, name=f"new_{name}").name
        for name in weights
    }
    return Step(graph, loss.name, updated)


def batches(data: Data, size: int, seed: int) -> Iterator[Arrays]:
    """Shuffled full batches of one pass over the training images."""
    order = np.random.default_rng(seed).permutation(len(data.train_labels))
    for start in range(0, len(order) - size + 1, size):
        rows = order[start : start + size]
        yield {"images": data.train_images[rows], "labels": data.train_labels[rows]}


def accuracy(data: Data, weights: Arrays) -> float:
    """The share of test images whose largest logit is the right digit."""
    graph = Graph()
    logits = build_logits(graph, len(data.test_labels))
    found = evaluate(graph, {**weights, "images": data.test_images}, [logits])[logits.name]
    return float((found.argmax(1) == data.test_labels).mean())


def train(
    data: Data, epochs: int = 15, batch: int = 64, report: Callable[[str], None] = lambda text: None
) -> Arrays:
    """Weights after `epochs` passes over the training images."""
    step = build_step(batch)
    optimised = optimize(step.graph, step.outputs).graph
    report(f"training step: {len(step.graph)} nodes, {len(optimised)} after optimisation")
    run = compile_graph(optimised, step.outputs)
    weights = initial_weights()
    for epoch in range(epochs):
        losses = []
        for inputs in batches(data, batch, seed=epoch):
            values = run({**weights, **inputs})
            weights = {name: values[node] for name, node in step.updated.items()}
            losses.append(float(values[step.loss]))
        report(f"epoch {epoch + 1:2}: mean loss {np.mean(losses):.4f}")
    return weights


def main() -> None:
    """Train, and tell the test accuracy."""
    data = load()
    start = time.perf_counter()
    weights = train(data, report=print)
    print(f"trained in {time.perf_counter() - start:.2f} s")
    print(f"test accuracy {accuracy(data, weights):.1%} on {len(data.test_labels)} images")


if __name__ == "__main__":
    main()
