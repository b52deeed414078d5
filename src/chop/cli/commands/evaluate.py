"""`mase eval`: measure a model on a dataset."""

from __future__ import annotations

from typing import Any

from chop.cli.configs import EvalConfig
from chop.cli.data import require_data
from chop.cli.session import Session
from chop.cli.source import describe, find_source, load_graph
from chop.cli.training import measure


def run(config: EvalConfig, session: Session) -> dict[str, Any]:
    """The loss and the metric on the test rows."""
    source = find_source(config)
    data = require_data(config, source.place, "eval")
    graph = load_graph(config, source, data)
    with session.console.progress(f"evaluate on {len(data.test)} rows"):
        found = measure(graph, data, config)
    for name, value in found.items():
        session.console.say(f"{name}: {value:.4f}")
    return {**describe(graph, source), "rows": len(data.test), "eval": found}
