"""Subjects of sweeps and searches: a graph to compress, with functions to train and measure it."""

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

    `graph(seed)` returns a new graph to change; `train(graph, seed)` trains it in place, with
    further settings by keyword; `evaluate(graph)` returns its accuracy (more is better);
    `batches()` returns a few inputs for calibration. `rows`: number of rows, if
    `evaluate_rows(graph, first, last)` can evaluate some of them.
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
    """Return a subject that trains and evaluates with `get_trainer`; `graph` stays unchanged.

    Its `train` also accepts arguments of `get_trainer`, which override those given here, and
    `on_epoch`, a function of the epoch's number and the metric.
    """

    def trainer(changed: MaseGraph, seed: int, **options: Any) -> Any:
        # a pass may change inputs and parameters: each use has a new trainer
        return get_trainer(
            changed.model,
            dataset,
            tokenizer,
            evaluate_metric,
            seed=seed,
            **{"num_train_epochs": num_train_epochs, **training_arguments, **options},
        )

    def train(
        changed: MaseGraph, seed: int, on_epoch: OnEpoch | None = None, **options: Any
    ) -> None:
        training = trainer(changed, seed, **options)
        if on_epoch is not None:
            name = f"eval_{evaluate_metric}"
            training.add_callback(EpochReport(lambda: float(training.evaluate()[name]), on_epoch))
        training.train()

    def evaluate(changed: MaseGraph) -> float:
        return float(trainer(changed, 0).evaluate()[f"eval_{evaluate_metric}"])

    def batches() -> Batches:
        return itertools.islice(trainer(graph, 0).get_eval_dataloader(), num_batches)

    return Subject(lambda seed: copy.deepcopy(graph), train, evaluate, batches)


class EpochReport(TrainerCallback):
    """Callback that measures after each epoch, without effect on the random numbers."""

    def __init__(self, measure: Callable[[], float], on_epoch: OnEpoch) -> None:
        self.measure, self.on_epoch = measure, on_epoch

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure and report."""
        with torch.random.fork_rng():
            reached = self.measure()
        self.on_epoch(round(state.epoch), reached)
