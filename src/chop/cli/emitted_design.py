"""Parts that `mase emit`, `simulate`, `synth` and `hw` share: from options to a design."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor

from chop.actions.hardware import emit_hardware
from chop.cli.data import Data
from chop.cli.hardware_trials import load_trial
from chop.cli.output import settle
from chop.cli.session import Session
from chop.cli.shared_options import DataOptions, ModelOptions, OutputOptions
from chop.cli.source import describe, load
from chop.errors import ConfigError
from chop.hw.interfaces.axi_wrapper import emit_axi
from chop.hw.lower import DesignSpec
from chop.hw.lower.design_cache import design_spec
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.passes.graph.analysis.add_hardware_metadata import (
    AddHardwareMetadataArgs,
    fitted_args,
)

HARDWARE = "hardware"
TESTED_ROWS = 360
"""Largest number of dataset rows in the test bench."""


@dataclass(frozen=True, kw_only=True)
class DesignOptions(ModelOptions, DataOptions, OutputOptions):
    """Trial."""

    trial: Annotated[
        str | None,
        "For a folder of `mase search --space hardware`: use the design of this trial, by its "
        "number or by an objective (the best by it).",
    ] = None
    design: AddHardwareMetadataArgs = field(
        default_factory=AddHardwareMetadataArgs, metadata={"prefix": ""}
    )


@dataclass(frozen=True)
class DesignInput:
    """A graph to build, data to test it with, and the arguments of its parallelism.

    `facts`: for the record. `part`: the FPGA that the design was chosen for, or None.
    """

    graph: MaseGraph
    data: Data | None
    args: DesignSpec
    facts: dict[str, Any]
    part: str | None = None

    @property
    def test_inputs(self) -> tuple[Tensor, ...] | None:
        """Test rows as inputs of the design; None without a dataset."""
        if self.data is None:
            return None
        return tuple(self.data.test_rows(self.graph.model, TESTED_ROWS).values())


def load_design_input(config: DesignOptions, session: Session) -> DesignInput:
    """Load the graph of the model, or the design of the trial, and check that it has RTL."""
    if config.trial is None:
        source, data, graph = load(config)
        args = _parallelism(config, graph, session)
        return DesignInput(graph, data, args, describe(graph, source), config.design.fit)
    if config.design != AddHardwareMetadataArgs():
        raise ConfigError("trial: a trial says how its design is folded; leave these options out.")
    trial = load_trial(config.model, config.trial)
    session.console.say(trial.in_words())
    facts = {**describe(trial.graph, trial.loaded.source), "trial": dict(trial.trial)}
    spec = design_spec(trial.graph)
    return DesignInput(trial.graph, trial.data, spec, facts, trial.part)


def _parallelism(config: DesignOptions, graph: MaseGraph, session: Session) -> DesignSpec:
    """Return the settings of the design; for a part they are chosen here, with progress."""
    part = config.design.fit
    if part is None:
        return config.design
    with session.console.progress(f"designs for {part}") as progress:

        def report(tried: int, most: int, text: str) -> None:
            progress.expect(most)
            progress.to(tried, text)

        return fitted_args(graph, config.design, part, report)


def start_hardware(inputs: DesignInput, session: Session) -> None:
    """End a dry run after the graph was lowered, which rejects ops without RTL."""
    if session.is_dry:
        add_hardware_metadata_analysis_pass(inputs.graph, inputs.args)
    session.start_work()


def emit_project(
    inputs: DesignInput, project: Path, *, has_axi: bool = False, clocks: int = 1
) -> dict[str, Any]:
    """Write `project`/hardware; return the pace of the design and its files.

    `has_axi` adds the AXI wrapper, with one or two `clocks`.
    """
    _, info = add_hardware_metadata_analysis_pass(inputs.graph, inputs.args)
    emit_hardware(inputs.graph, project, inputs=inputs.test_inputs)
    if has_axi:
        emit_axi(project / HARDWARE, clocks=clocks)
    written = (project / HARDWARE).rglob("*")
    files = sorted(str(p.relative_to(project)) for p in written if p.is_file())
    return {**info, "files": files}


def is_project(model: str | None) -> bool:
    """Return True if the folder `model` holds emitted hardware."""
    if model is None:
        return False
    settle(Path(model))
    return (Path(model) / HARDWARE / "design.json").is_file()
