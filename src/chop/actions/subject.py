"""What a sweep works on: a graph to compress, a way to train it, a way to measure it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chop.actions.train import get_trainer
from chop.ir.graph import MaseGraph

Batches = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Subject:
    """A model under study.

    `graph(seed)` gives a graph of its own to change; `train(graph, seed)` fine-tunes it in place;
    `evaluate(graph)` gives its accuracy (more is better); `batches()` gives a few inputs to
    observe activations on.
    """

    graph: Callable[[int], MaseGraph]
    train: Callable[[MaseGraph, int], None]
    evaluate: Callable[[MaseGraph], float]
    batches: Callable[[], Batches]


def trained_subject(
    graph: MaseGraph,
    dataset: Mapping[str, Any],
    tokenizer: Any = None,
    evaluate_metric: str = "accuracy",
    num_train_epochs: float = 1,
    num_batches: int = 4,
    **training_arguments: Any,
) -> Subject:
    """A subject that trains and evaluates with `get_trainer`; `graph` itself is not changed."""

    def trainer(changed: MaseGraph, seed: int) -> Any:
        # A pass may change what the model takes and trains: each use gets its own trainer.
        return get_trainer(
            changed.model,
            dataset,
            tokenizer,
            evaluate_metric,
            num_train_epochs,
            seed=seed,
            **training_arguments,
        )

    def evaluate(changed: MaseGraph) -> float:
        return float(trainer(changed, 0).evaluate()[f"eval_{evaluate_metric}"])

    def batches() -> Batches:
        loader = trainer(graph, 0).get_eval_dataloader()
        return itertools.islice(loader, num_batches)

    return Subject(
        graph=lambda seed: copy.deepcopy(graph),
        train=lambda changed, seed: trainer(changed, seed).train() and None,
        evaluate=evaluate,
        batches=batches,
    )
