"""`mase eval`: measure a model on a dataset."""

from __future__ import annotations

import dataclasses
from typing import Any

from chop.actions.language import AGREEMENT
from chop.cli.configs import EvalConfig
from chop.cli.data import Data, require_data
from chop.cli.failures import UsageError
from chop.cli.session import Session
from chop.cli.source import describe, find_source, load_graph
from chop.cli.training import measured
from chop.ir.graph import MaseGraph


def run(config: EvalConfig, session: Session) -> dict[str, Any]:
    """The loss and the metric on the test rows."""
    source = find_source(config)
    data = require_data(config, source.place, "eval")
    graph = load_graph(config, source, data)
    reference = _reference(config, data)
    with session.console.progress(f"evaluate on {len(data.test)} rows"):
        found = measured(session, graph, data, config, reference)
    for name, value in found.items():
        session.console.say(f"{name}: {value:.4f}")
    return {**describe(graph, source), "rows": len(data.test), "eval": found}


def _reference(config: EvalConfig, data: Data) -> MaseGraph | None:
    """The model to agree with."""
    if config.against is None:
        if config.measure == AGREEMENT:
            raise UsageError(f"--metric {AGREEMENT} compares with another model: give --against.")
        return None
    if config.measure != AGREEMENT:
        raise UsageError(f"--against is for --metric {AGREEMENT}, got --metric {config.measure}.")
    other = dataclasses.replace(config, model=config.against)
    return load_graph(other, find_source(other, is_alone=False), data)
