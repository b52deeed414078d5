"""Designs of the trials of `mase search --space hardware`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.cli.commands.search import SearchConfig
from chop.cli.data import Data
from chop.cli.failures import UsageError
from chop.cli.settings import read_settings, read_table
from chop.cli.subjects import ModelAndData, SubjectMaker, load_subject
from chop.errors import ConfigError, HardwareError
from chop.hw.lower.design_cache import attached_design
from chop.hw.sim.emit import design_fingerprint
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.registry import suggest
from chop.search.apply import apply, find_trial, read_study
from chop.search.hardware_evaluate import HARDWARE, OBJECTIVES, HardwareEvaluator
from chop.search.space import Space

KIND = "hardware"
MODES = {"compress": False, "compress->train": True}
"""Modes of a search for hardware -> True if its trials train."""
DEFAULT_COSTS = SearchConfig.__dataclass_fields__["costs"].default


@dataclass(frozen=True)
class TrialDesign:
    """The model of a trial, annotated with its design, and the record of the trial."""

    graph: MaseGraph
    data: Data
    loaded: ModelAndData
    trial: Mapping[str, Any]

    @property
    def args(self) -> dict[str, Any]:
        """Arguments of add_hardware_metadata_analysis_pass."""
        return dict(self.trial["attributes"][HARDWARE]["args"])

    @property
    def part(self) -> str:
        """Part for which it was scored."""
        return str(self.trial["attributes"][HARDWARE]["part"])

    def in_words(self) -> str:
        """Return the values of the trial, with the typical error of such predictions."""
        values = ", ".join(f"{name} {value:.6g}" for name, value in self.trial["values"].items())
        errors = self.trial["attributes"][HARDWARE].get("predicted_errors", "")
        origin = f"predicted for {self.part}{'; ' if errors else ''}{errors}"
        return f"trial {self.trial['number']}: {values} ({origin})"


def make_evaluator(config: SearchConfig, loaded: ModelAndData, space: Space) -> HardwareEvaluator:
    """Return the evaluation of a search for hardware."""
    if config.mode not in MODES:
        raise ConfigError(
            f"search.mode: '{config.mode}' has no meaning for the space hardware. "
            f"{suggest(config.mode, MODES)}"
        )
    return HardwareEvaluator(
        loaded.subject if config.workers == 1 else SubjectMaker.of(config),
        space,
        costs=OBJECTIVES if config.costs == DEFAULT_COSTS else config.costs,
        objective=config.measure,
        train_after=MODES[config.mode],
        keep=MODES[config.mode],  # a trained model is not trained again for its RTL
    )


def load_trial(folder: str | None, number: str) -> TrialDesign:
    """Return the design of a trial of the search in `folder`, checked to be the scored one.

    `number`: its number, or an objective for the best by it.
    """
    if folder is None or not (Path(folder) / "study.json").is_file():
        raise UsageError(
            f"trial: '{folder}' has no study. Give a folder that `mase search --space {KIND}` "
            "wrote."
        )
    config = read_settings(
        SearchConfig, read_table(Path(folder) / "config.toml", "search"), "search"
    )
    if KIND not in config.space:
        raise UsageError(
            f"trial: the search in '{folder}' chose no hardware, which `mase search MODEL --space "
            f"{KIND}` does. Save the model of another search with its --apply."
        )
    record, _ = read_study(folder)
    trial = find_trial(record, number)
    loaded = load_subject(config, "search")
    space = Space.from_config(config.space, "search.space", loaded.graph)
    graph = apply({**record}, int(trial["number"]), make_evaluator(config, loaded, space))
    design = TrialDesign(graph, loaded.data, loaded, trial)
    add_hardware_metadata_analysis_pass(graph, design.args)
    require_scored(graph, trial)
    return design


def require_scored(graph: MaseGraph, trial: Mapping[str, Any]) -> None:
    """Raise unless the graph's design equals, byte for byte, the one that the trial scored."""
    current = design_fingerprint(attached_design(graph).design)
    scored = trial["attributes"][HARDWARE]["design"]
    if current != scored:
        raise HardwareError(
            f"trial {trial['number']}: its design is {current} now and was {scored} when it was "
            f"scored: the model, the data or this program changed. Run the search again."
        )
