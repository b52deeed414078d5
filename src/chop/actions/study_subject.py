"""What a sweep works on: a graph to compress, a way to train it, a way to measure it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback

from chop.actions.train import get_trainer
from chop.arguments import MAPPING, an, takes
from chop.ir.graph import MaseGraph

Batches = Iterable[Mapping[str, Any]]
OnEpoch = Callable[[int, float], None]


@dataclass(frozen=True)
class Subject:
    """A model under study.

    `graph(seed)` gives a graph of its own to change; `train(graph, seed)` fine-tunes it in place,
    with further settings by keyword where it takes them;
    `evaluate(graph)` gives its accuracy (more is better); `batches()` gives a few inputs to
    observe activations on. Where it can be measured row by row, `rows` says how many there are and
    `evaluate_rows(graph, first, last)` gives the accuracy on some.
    """

    graph: Callable[[int], MaseGraph]
    train: Callable[..., None]
    evaluate: Callable[[MaseGraph], float]
    batches: Callable[[], Batches]
    rows: int = 0
    evaluate_rows: Callable[[MaseGraph, int, int], float] | None = None


@takes(graph=an(MaseGraph), dataset=MAPPING)
def trained_subject(
    graph: MaseGraph,
    dataset: Mapping[str, Any],
    tokenizer: Any = None,
    evaluate_metric: str = "accuracy",
    num_train_epochs: float = 1,
    num_batches: int = 4,
    **training_arguments: Any,
) -> Subject:
    """A subject that trains and evaluates with `get_trainer`; `graph` itself is not changed.

    Its `train` also takes arguments of `get_trainer` by keyword, which go before those given here,
    and `on_epoch`, called after each epoch with its number and the metric reached.
    """

    def trainer(changed: MaseGraph, seed: int, **chosen: Any) -> Any:
        # A pass may change what the model takes and trains: each use gets its own trainer.
        return get_trainer(
            changed.model,
            dataset,
            tokenizer,
            evaluate_metric,
            seed=seed,
            **{"num_train_epochs": num_train_epochs, **training_arguments, **chosen},
        )

    def train(
        changed: MaseGraph, seed: int, on_epoch: OnEpoch | None = None, **chosen: Any
    ) -> None:
        trains = trainer(changed, seed, **chosen)
        if on_epoch is not None:
            name = f"eval_{evaluate_metric}"
            trains.add_callback(EpochReport(lambda: float(trains.evaluate()[name]), on_epoch))
        trains.train()

    def evaluate(changed: MaseGraph) -> float:
        return float(trainer(changed, 0).evaluate()[f"eval_{evaluate_metric}"])

    def batches() -> Batches:
        loader = trainer(graph, 0).get_eval_dataloader()
        return itertools.islice(loader, num_batches)

    return Subject(
        graph=lambda seed: copy.deepcopy(graph),
        train=train,
        evaluate=evaluate,
        batches=batches,
    )


class EpochReport(TrainerCallback):
    """Measures after each epoch and tells; the random numbers of training stay as they were."""

    def __init__(self, measure: Callable[[], float], on_epoch: OnEpoch) -> None:
        self.measure, self.on_epoch = measure, on_epoch

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer."""
        with torch.random.fork_rng():
            reached = self.measure()
        self.on_epoch(round(state.epoch), reached)
