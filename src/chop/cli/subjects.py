"""The model and the data of a configuration, ready for sweeps and searches."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from chop.actions.language import LANGUAGE_METRICS
from chop.actions.study_subject import EpochReport, OnEpoch, Subject
from chop.cli.commands.search import SearchConfig
from chop.cli.data import Data
from chop.cli.named_objects import thing_of
from chop.cli.settings import read_settings, to_toml
from chop.cli.source import Source, load_with_data
from chop.cli.train_and_measure import make_trainer, measure, training_arguments
from chop.config import parse_toml
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph

OBSERVED_BATCHES = 4
"""Training batches that a subject offers for calibration."""


def make_subject(graph: MaseGraph, data: Data, config: Any) -> Subject:
    """Return a subject: copies of `graph` to change, and functions to train and evaluate them."""

    def trainer(changed: MaseGraph, seed: int, **options: Any) -> Any:
        epochs = options.pop("num_train_epochs", config.epochs)
        arguments = {**training_arguments(changed, config), "seed": seed, **options}
        return make_trainer(changed, data, config, epochs, arguments)

    def train(
        changed: MaseGraph, seed: int, on_epoch: OnEpoch | None = None, **options: Any
    ) -> None:
        training = trainer(changed, seed, **options)
        if on_epoch is not None:
            training.add_callback(EpochReport(lambda: evaluate(changed), on_epoch))
        training.train()
        changed.model.to("cpu").eval()

    def evaluate(changed: MaseGraph) -> float:
        if config.measure in LANGUAGE_METRICS:
            return measure(changed, data, config, graph)[config.measure]
        return float(trainer(changed, 0).evaluate()[f"eval_{config.measure}"])

    def evaluate_rows(changed: MaseGraph, first: int, last: int) -> float:
        some = data.test.select(range(first, last))
        return float(trainer(changed, 0).evaluate(some)[f"eval_{config.measure}"])

    return Subject(
        graph=lambda seed: copy.deepcopy(graph),
        train=train,
        evaluate=evaluate,
        batches=lambda: data.batches(graph.model, config.rows_measured_at_once, OBSERVED_BATCHES),
        rows=len(data.test),
        evaluate_rows=evaluate_rows if hasattr(data.test, "select") else None,
    )


@dataclass(frozen=True)
class ModelAndData:
    """The model and the data of a configuration.

    `subject` evaluates on the validation rows, not on the test rows.
    """

    source: Source
    graph: MaseGraph
    data: Data
    subject: Subject


def load_subject(config: Any, purpose: str) -> ModelAndData:
    """Return the model and the data of `config` as a subject."""
    source, data, graph = load_with_data(config, purpose)
    return ModelAndData(source, graph, data, make_subject(graph, data.for_choosing(), config))


@dataclass(frozen=True)
class SubjectMaker:
    """A function that loads the subject of a search, in any process."""

    settings: str

    @classmethod
    def of(cls, config: SearchConfig) -> SubjectMaker:
        """Return the maker for a configuration."""
        for name in ("model", "dataset"):
            if thing_of(getattr(config, name)) is not None:
                raise ConfigError(
                    f"search.workers: {config.workers} processes, and {name} is an object of this "
                    f"one. Give workers=1, or save it and give its path."
                )
        return cls(to_toml("search", config))

    def __call__(self) -> Subject:
        table = parse_toml(self.settings, "search")["search"]
        return load_subject(read_settings(SearchConfig, table, "search"), "search").subject
