"""The model and data of a command line as sweeps and searches want them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from chop.actions.language import LANGUAGE_METRICS
from chop.actions.model_under_study import EpochReport, OnEpoch, Subject
from chop.cli.configs import SearchConfig
from chop.cli.data import Data, require_data
from chop.cli.settings import read_settings, to_toml
from chop.cli.source import Source, find_source, load_graph
from chop.cli.training import make_trainer, measure, training_arguments
from chop.config import parse_toml
from chop.ir.graph import MaseGraph

OBSERVED_BATCHES = 4


def make_subject(graph: MaseGraph, data: Data, config: Any) -> Subject:
    """Copies of `graph` to change, a way to train and to measure them."""

    def trainer(changed: MaseGraph, seed: int, **chosen: Any) -> Any:
        epochs = chosen.pop("num_train_epochs", config.epochs)
        arguments = {**training_arguments(changed, config), "seed": seed, **chosen}
        return make_trainer(changed, data, config, epochs, arguments)

    def train(
        changed: MaseGraph, seed: int, on_epoch: OnEpoch | None = None, **chosen: Any
    ) -> None:
        trains = trainer(changed, seed, **chosen)
        if on_epoch is not None:
            trains.add_callback(EpochReport(lambda: evaluate(changed), on_epoch))
        trains.train()
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
    """What a configuration names: where its model is from, the graph and the data.

    `subject` measures on rows to choose by, which are not the test rows.
    """

    source: Source
    graph: MaseGraph
    data: Data
    subject: Subject


def load_subject(config: Any, purpose: str) -> ModelAndData:
    """The model and the data of `config`, ready to be compared with others."""
    source = find_source(config)
    data = require_data(config, source.place, purpose)
    graph = load_graph(config, source, data)
    return ModelAndData(source, graph, data, make_subject(graph, data.for_choosing(), config))


@dataclass(frozen=True)
class SubjectMaker:
    """Makes the subject of a search from its configuration, in whatever process it is called."""

    settings: str

    @classmethod
    def of(cls, config: SearchConfig) -> SubjectMaker:
        """The maker for a configuration."""
        return cls(to_toml("search", config))

    def __call__(self) -> Subject:
        table = parse_toml(self.settings, "search")["search"]
        return load_subject(read_settings(SearchConfig, table, "search"), "search").subject
