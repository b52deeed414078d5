"""`mase emit`: the SystemVerilog of a quantised model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.actions.hardware import emit_hardware
from chop.cli.configs import DataOptions, ModelOptions, OutputOptions
from chop.cli.data import Data, load_data
from chop.cli.hardware_trials import load_trial
from chop.cli.session import Session
from chop.cli.source import describe, find_source, load_graph
from chop.errors import ConfigError
from chop.hw.flow.predict import predict
from chop.hw.lower import DesignSpec
from chop.hw.lower.design_cache import attached_design, design_spec
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import add_hardware_metadata_analysis_pass
from chop.passes.graph.analysis.add_hardware_metadata import (
    AddHardwareMetadataArgs,
    fitted_args,
)

HARDWARE = "hardware"
TESTED_ROWS = 360
"""The most rows of a dataset that go into the test bench."""


@dataclass(frozen=True, kw_only=True)
class EmitConfig(ModelOptions, DataOptions, OutputOptions):
    """Hardware.

    `trial`: of the folder of a `mase search --space hardware`, emit the design of this trial: its
    number, or an objective for the best by it.
    """

    trial: str | None = None
    design: AddHardwareMetadataArgs = field(
        default_factory=AddHardwareMetadataArgs, metadata={"prefix": ""}
    )
    out: Path = Path("out/emit")


@dataclass(frozen=True)
class Emitted:
    """What becomes hardware: a graph, data to test it on, and how it is folded.

    `facts` are for the record. `part`: what a trial was scored for, or the design was chosen for;
    None where there is no such.
    """

    graph: MaseGraph
    data: Data | None
    args: DesignSpec
    facts: dict[str, Any]
    part: str | None = None


def load_emitted(config: EmitConfig, session: Session) -> Emitted:
    """The graph of the model, or the design of the trial, that a command line asks for."""
    if config.trial is None:
        source = find_source(config)
        data = load_data(config, source.place)
        graph = load_graph(config, source, data)
        facts = describe(graph, source)
        return Emitted(graph, data, _folding(config, graph, session), facts, config.design.fit)
    if config.design != AddHardwareMetadataArgs():
        raise ConfigError("trial: a trial says how its design is folded; leave these options out.")
    found = load_trial(config.model, config.trial)
    session.console.say(found.in_words())
    facts = {**describe(found.graph, found.loaded.source), "trial": dict(found.trial)}
    spec = design_spec(found.graph)
    return Emitted(found.graph, found.data, spec, facts, found.part)


def _folding(config: EmitConfig, graph: MaseGraph, session: Session) -> DesignSpec:
    """Return the settings of the options; the search for a part runs here, with its progress."""
    part = config.design.fit
    if part is None:
        return config.design
    with session.console.progress(f"designs for {part}") as progress:

        def tell(tried: int, most: int, text: str) -> None:
            progress.expect(most)
            progress.to(tried, text)

        return fitted_args(graph, config.design, part, tell)


def start_hardware(given: Emitted, session: Session) -> None:
    """End a dry run, after the design was made from the graph: that refuses what has no RTL."""
    if session.is_dry:
        add_hardware_metadata_analysis_pass(given.graph, given.args)
    session.start_work()


def run(config: EmitConfig, session: Session) -> dict[str, Any]:
    """Choose the parallelism, write RTL, memories and test bench."""
    given = load_emitted(config, session)
    start_hardware(given, session)
    told = emit(given.graph, given.data, given.args, session.folder)
    session.console.say(
        f"{len(told['files'])} files: a tensor every {told['cycles']} cycles, "
        f"{told['multipliers']} multipliers"
    )
    if config.design.fit is not None:
        told["predicted"] = str(predict(attached_design(given.graph).design, config.design.fit))
        session.console.say(told["predicted"])
    session.console.say(f"next: mase simulate {config.out}")
    return {**given.facts, **told}


def emit(graph: MaseGraph, data: Data | None, args: DesignSpec, project: Path) -> dict[str, Any]:
    """Write `project`/hardware; the pace of the design and its files."""
    _, info = add_hardware_metadata_analysis_pass(graph, args)
    emit_hardware(graph, project, inputs=test_inputs(graph, data))
    written = (project / HARDWARE).rglob("*")
    files = sorted(str(p.relative_to(project)) for p in written if p.is_file())
    return {**info, "files": files}


def test_inputs(graph: MaseGraph, data: Data | None) -> tuple[Tensor, ...] | None:
    """Test rows as the design takes them; None where there is no dataset."""
    return None if data is None else tuple(data.test_rows(graph.model, TESTED_ROWS).values())
